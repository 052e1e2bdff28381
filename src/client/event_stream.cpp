// SPDX-License-Identifier: Apache-2.0
#include "client/event_stream.h"

namespace warprow {

void EventStream::feed(std::string_view piece, const OnData& on_data) {
  for (size_t end = piece.find('\n'); end != std::string_view::npos; end = piece.find('\n')) {
    if (rest_.empty()) {
      take_line(piece.substr(0, end), on_data);
    } else {
      rest_ += piece.substr(0, end);
      take_line(rest_, on_data);
      rest_.clear();
    }
    piece.remove_prefix(end + 1);
  }
  rest_ += piece;
}

void EventStream::take_line(std::string_view line, const OnData& on_data) {
  if (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  if (line.empty()) {
    if (has_data_) {
      on_data(data_);
    }
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kField = "data:";
  if (line.substr(0, kField.size()) != kField) {
    return;
  }
  line.remove_prefix(kField.size());
  if (!line.empty() && line.front() == ' ') {
    line.remove_prefix(1);
  }
  if (has_data_) {
    data_ += '\n';
  }
  data_ += line;
  has_data_ = true;
}

}  // namespace warprow
