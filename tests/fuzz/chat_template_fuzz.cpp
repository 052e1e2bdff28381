// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever a template says, it is a text or an error of one line, in bounded time, and the
// next template is rendered as ever.
#include "text/chat_template.h"

#include "base/check.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace warprow {
namespace {

ChatRequest messages() {
  ChatRequest request;
  request.messages = {{{"role", "system"}, {"content", "Be kind."}},
                      {{"role", "user"}, {"content", "Hi"}}};
  request.tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  return request;
}

void check_error(const Error& error) {
  WR_CHECK(error.code != ErrorCode::kInternal && error.code != ErrorCode::kCorrupt);
  WR_CHECK(!error.message.empty());
}

void check_template(std::string_view source) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto parsed = ChatTemplate::parse({source, "", {{"eos_token", "</s>"}}});
  if (!parsed) {
    check_error(parsed.error());
  } else if (const auto text = parsed->render(messages()); !text) {
    check_error(text.error());
  }
  WR_CHECK(Clock::now() - start < std::chrono::seconds(60));
}

void check_next() {
  static const Result<ChatTemplate> plain =
      ChatTemplate::parse({"{% for m in messages %}{{ m.role }}{% endfor %}", "", {}});
  const auto text = plain->render(messages());
  WR_CHECK(text && *text == "systemuser");
}

}  // namespace
}  // namespace warprow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  warprow::check_template({reinterpret_cast<const char*>(data), size});
  warprow::check_next();
  return 0;
}
