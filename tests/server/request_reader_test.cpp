// SPDX-License-Identifier: Apache-2.0
// Requests that arrive in pieces. Refusals are tested end to end.
#include "server/http/request_reader.h"

#include "tests/support/request_reading.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace warprow {
namespace {

test::ReadRequests read_in_pieces(std::string_view bytes, size_t first, size_t len) {
  boost::asio::io_context io(1);
  const HttpOptions options;
  test::RequestReading reading(io, options);
  reading.send(bytes.substr(0, first));
  for (size_t at = first; at < bytes.size(); at += len) {
    reading.send(bytes.substr(at, len));
  }
  return reading.finish();
}

TEST(RequestReader, ReadsTheSameHoweverBytesAreCut) {
  const std::string bytes =
      "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nX: 1\r\n\r\n"
      "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
      "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
  const test::ReadRequests wanted{
      {{"POST", "/a", "abcd"}, {"POST", "/b", "hi"}, {"POST", "/c", ""}}, 0};
  for (size_t first = 0; first < bytes.size(); ++first) {
    for (const size_t len : {size_t{1}, size_t{4}, bytes.size()}) {
      EXPECT_EQ(read_in_pieces(bytes, first, len), wanted) << first << " " << len;
    }
  }
}

// The parser of Boost 1.81 asserts that at least five bytes follow a last chunk whose end has not arrived.
TEST(RequestReader, ALastChunkMayBeFollowedByOneByte) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* rest : {"0\r\n", "00\r\n", "0;a\r\n"}) {
    boost::asio::io_context io(1);
    const HttpOptions options;
    test::RequestReading reading(io, options);
    reading.send(head + rest);
    reading.send("X");
    reading.send(": 1\r\n\r\n");
    EXPECT_EQ(reading.finish(), (test::ReadRequests{{{"POST", "/", ""}}, 0})) << rest;
  }
}

}  // namespace
}  // namespace warprow
