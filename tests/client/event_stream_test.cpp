// SPDX-License-Identifier: Apache-2.0
#include "client/event_stream.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> events_of(std::string_view text, size_t piece_len) {
  EventStream stream;
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size(); at += piece_len) {
    stream.feed(text.substr(at, piece_len),
                [&out](std::string_view data) { out.emplace_back(data); });
  }
  return out;
}

TEST(EventStream, FindsEventsHoweverTheyAreCut) {
  const std::string text =
      "data: {\"a\":1}\n\n"
      ": a comment\n\n"
      "event: x\r\ndata:no space\r\nid: 7\r\n\r\n"
      "data:  two\ndata: lines\n\n"
      "data:\n\n"
      "data: [DONE]\n\n"
      "data: without its end\n";
  for (size_t piece_len = 1; piece_len <= text.size(); ++piece_len) {
    EXPECT_THAT(events_of(text, piece_len),
                ElementsAre("{\"a\":1}", "no space", " two\nlines", "", "[DONE]"))
        << piece_len;
  }
}

}  // namespace
}  // namespace warprow
