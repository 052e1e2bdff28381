// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace warprow {

// Parses the events in the body of a text/event-stream response. The pieces may be cut anywhere. Only `data` is read:
// several data lines of one event are joined with line ends; comments and other fields are skipped. Lines end with LF
// or CRLF.
//
// Origin: WHATWG HTML, section 9.2 (server-sent events). Thread: one.
class EventStream {
 public:
  using OnData = std::function<void(std::string_view data)>;

  // Adds a piece and reports every event that is now complete.
  void feed(std::string_view piece, const OnData& on_data);

 private:
  void take_line(std::string_view line, const OnData& on_data);

  std::string rest_;  // an incomplete line
  std::string data_;  // of the incomplete event
  bool has_data_ = false;
};

}  // namespace warprow
