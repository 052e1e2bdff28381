// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <spdlog/spdlog.h>

namespace warprow {

// All logging goes to stderr through spdlog's default logger: WR_LOG_INFO("loaded {} tensors", n).
// level: trace|debug|info|warning|error|off; format: text|json, one object a line. Returns false for an unknown word.
bool init_logging(std::string_view level, std::string_view format);

}  // namespace warprow

#define WR_LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
#define WR_LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define WR_LOG_WARN(...) ::spdlog::warn(__VA_ARGS__)
#define WR_LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)
