// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include "base/utf8.h"

#include <memory>
#include <string>

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

namespace warprow {
namespace {

// The message as the inside of a JSON string: escaped, on one line, valid UTF-8.
class JsonText : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message,
              const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    std::string text;
    append_utf8_lossy({message.payload.data(), message.payload.size()}, text);
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        out.push_back('\\');
        out.push_back(c);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned char>(c));
      } else {
        out.push_back(c);
      }
    }
  }

  [[nodiscard]] std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<JsonText>();
  }
};

std::unique_ptr<spdlog::formatter> make_formatter(bool json) {
  if (!json) {
    return std::make_unique<spdlog::pattern_formatter>("%^%L%$ %H:%M:%S.%e %v");
  }
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonText>('*');
  formatter->set_pattern(R"({"ts":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%*"})");
  return formatter;
}

}  // namespace

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
  logger->set_formatter(make_formatter(format == "json"));
  spdlog::set_default_logger(std::move(logger));
  return true;
}

}  // namespace warprow
