// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <memory>
#include <string>

#include <spdlog/sinks/stdout_color_sinks.h>

namespace warprow {

bool init_logging(std::string_view level, std::string_view format) {
  if (format != "text" && format != "json") {
    return false;
  }
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return false;
  }
  auto logger = std::make_shared<spdlog::logger>(
      "warprow", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(parsed);
  // The json form does not escape messages, so they must hold no quotes or control characters.
  logger->set_pattern(format == "json"
                          ? R"({"ts":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})"
                          : "%^%L%$ %H:%M:%S.%e %v");
  spdlog::set_default_logger(std::move(logger));
  return true;
}

}  // namespace warprow
