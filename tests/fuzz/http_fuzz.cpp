// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: however a connection's bytes are split, the server reads the same requests. An accepted request
// ends where a strict reader of RFC 9112 ends it.
#include "base/check.h"
#include "server/http/host_rule.h"
#include "tests/support/request_reading.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>

namespace warprow {
namespace {

namespace asio = boost::asio;

constexpr size_t kMostHeaderBytes = 4096;
constexpr size_t kMostBodyBytes = 8192;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

// Takes the text up to the next CRLF, and the CRLF; nullopt if there is none.
std::optional<std::string_view> take_line(std::string_view& rest) {
  const size_t end = rest.find("\r\n");
  if (end == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 2);
  return line;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// Takes the body of a chunked request from `rest`.
std::string take_chunks(std::string_view& rest) {
  std::string body;
  while (true) {
    const auto line = take_line(rest);
    WR_CHECK(line);
    const std::string_view digits = line->substr(0, line->find_first_of("; \t"));
    uint64_t size = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), size, 16);
    WR_CHECK(error == std::errc() && end == digits.data() + digits.size());
    if (size == 0) {
      break;
    }
    WR_CHECK(rest.size() >= size + 2 && rest.substr(size, 2) == "\r\n");
    body += rest.substr(0, size);
    rest.remove_prefix(size + 2);
  }
  for (auto line = take_line(rest); line != ""; line = take_line(rest)) {
    WR_CHECK(line);  // a trailer line
  }
  return body;
}

// The next request of `rest` according to RFC 9112. It is called only for accepted requests, so an ambiguity is a bug
// of the server's reader.
test::ReadRequest take_request(std::string_view& rest) {
  const auto start = take_line(rest);
  WR_CHECK(start);
  std::optional<uint64_t> length;
  bool chunked = false;
  int num_hosts = 0;
  for (auto line = take_line(rest); line != ""; line = take_line(rest)) {
    WR_CHECK(line && line->front() != ' ' && line->front() != '\t');
    const size_t colon = line->find(':');
    WR_CHECK(colon != std::string_view::npos && colon > 0 && (*line)[colon - 1] != ' ');
    const std::string name = lowered(line->substr(0, colon));
    const std::string_view value = trimmed(line->substr(colon + 1));
    if (name == "content-length") {
      WR_CHECK(!length && !chunked && !value.empty());
      uint64_t number = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      WR_CHECK(error == std::errc() && end == value.data() + value.size());
      length = number;
    } else if (name == "transfer-encoding") {
      WR_CHECK(!length && !chunked && lowered(value) == "chunked");
      chunked = true;
    } else if (name == "host") {
      ++num_hosts;
      WR_CHECK(host_name(value));
    }
  }
  WR_CHECK(num_hosts == 1 || (num_hosts == 0 && !start->ends_with("/1.1")));
  const size_t first = start->find(' ');
  test::ReadRequest out{std::string(start->substr(0, first)),
                        std::string(start->substr(first + 1, start->rfind(' ') - first - 1)),
                        ""};
  if (chunked) {
    out.body = take_chunks(rest);
  } else if (length) {
    WR_CHECK(rest.size() >= *length);
    out.body = rest.substr(0, *length);
    rest.remove_prefix(*length);
  }
  return out;
}

// Sends the bytes in pieces of 1 to `longest` bytes.
test::ReadRequests read(std::string_view bytes, size_t longest) {
  static asio::io_context io(1);
  static const HttpOptions options = [] {
    HttpOptions out;
    out.max_header_bytes = kMostHeaderBytes;
    out.max_body_bytes = kMostBodyBytes;
    return out;
  }();
  test::RequestReading reading(io, options);
  size_t len = longest;
  for (bool reads = true; reads && !bytes.empty();) {
    len = len % longest + 1;
    reads = reading.send(bytes.substr(0, len));
    bytes.remove_prefix(std::min(len, bytes.size()));
  }
  return reading.finish();
}

void check_bytes(std::string_view bytes) {
  const test::ReadRequests whole = read(bytes, bytes.size() + 1);
  WR_CHECK(whole.refused == 0 || (whole.refused >= 400 && whole.refused < 500));
  std::string_view rest = bytes;
  for (const test::ReadRequest& request : whole.good) {
    WR_CHECK(request.body.size() <= kMostBodyBytes);
    WR_CHECK(take_request(rest) == request);
  }
  constexpr size_t kPieces = 16;  // each piece costs a system call
  // The last request may be refused in one run and cut off in another, because the parser waits for the end of some
  // lines.
  WR_CHECK(read(bytes, bytes.size() / kPieces + 1).good == whole.good);
}

void check_headers(std::string_view text) {
  if (const std::optional<std::string> name = host_name(text)) {
    WR_CHECK(!name->empty() && name->size() <= text.size() && *name == lowered(*name));
    WR_CHECK(name->find_first_of(" /@,%\t") == std::string::npos);
  }
  if (const std::optional<std::string> name = allowed_host(text); name && *name != "*") {
    WR_CHECK(HostRule({.guarded = true, .allowed = {*name}}).allows(*name));
  }
  CorsOptions cors;
  cors.origins = {"https://a.example"};
  for (const auto& [name, value] : cors_headers(cors, text, std::string(text))) {
    WR_CHECK(value.find_first_of("\r\n") == std::string::npos ||
             text.find_first_of("\r\n") != std::string_view::npos);
  }
  (void)query_values(text, "a");
}

}  // namespace
}  // namespace warprow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  warprow::check_bytes(bytes);
  warprow::check_headers(bytes.substr(0, bytes.find('\n')));
  return 0;
}
