// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace warprow {

// Finds the events in the body of a text/event-stream answer, however it was cut into pieces. Only
// `data` matters here; several data lines of one event are joined with line ends, comments and other
// fields are passed over. Lines end with LF or CRLF.
//
// Origin: WHATWG HTML, section 9.2 (server-sent events). Thread: one.
class EventStream {
 public:
  using OnData = std::function<void(std::string_view data)>;

  // Adds a piece and reports every event that is now complete.
  void feed(std::string_view piece, const OnData& on_data);

 private:
  void take_line(std::string_view line, const OnData& on_data);

  std::string rest_;  // a line that has not ended
  std::string data_;  // of the event under way
  bool has_data_ = false;
};

}  // namespace warprow
