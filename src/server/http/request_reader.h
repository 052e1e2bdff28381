// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/http/http_options.h"
#include "server/http/memory_budget.h"
#include "server/http_message.h"

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "net/byte_stream.h"
#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

// Only for http/: this header includes Boost.
namespace warprow {

// Reads one request from a connection: first the head, then the body if the caller asks for it. Refuses every framing
// that another server might read differently. If two servers divide the bytes differently, one request can hide in the
// body of another (request smuggling).
//
// Thread: the io_context's. Errors: if a read fails, take_refusal() has the reply. Without a refusal the client has
// disconnected or is too slow.
class RequestReader {
 public:
  using Head = boost::beast::http::request<boost::beast::http::string_body>;

  // All arguments must outlive the reader. buffer: holds the bytes that were read ahead, on entry and at the end.
  RequestReader(ByteStream& stream,
                boost::beast::flat_buffer& buffer,
                const HttpOptions& options,
                MemoryBudget& memory);
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // The request line and the headers, within header_timeout.
  boost::asio::awaitable<bool> read_head();
  // The body, within read_timeout from the head's first byte. Sends 100 Continue to a client that waits for it.
  boost::asio::awaitable<bool> read_body();

  [[nodiscard]] const Head& head() const { return parser_.get(); }
  // Whether a body follows that has not been read.
  [[nodiscard]] bool has_body() const { return !parser_.is_done(); }
  std::string take_body() { return std::move(parser_.get().body()); }
  // The body's share of the budget. Keep it as long as the body is in memory.
  MemoryShare take_body_memory() { return std::move(body_memory_); }
  std::optional<HttpReply> take_refusal() { return std::move(refusal_); }

 private:
  using Error = boost::system::error_code;
  using Piece = boost::beast::string_view;

  void start_clock();  // for the request's time-outs
  bool parse_head();   // parses the buffer; false: refused
  [[nodiscard]] bool head_is_good();
  bool parse_body();
  // Looks for continuation lines among the next `size` bytes of the head.
  void look_for_folds(const char* bytes, size_t size);
  boost::asio::awaitable<bool> read_more(size_t piece);
  bool refuse(int status, std::string message);  // returns false
  bool refuse(const Error& error);
  bool refuse_for_memory();

  ByteStream& stream_;
  boost::beast::flat_buffer& buffer_;
  const HttpOptions& options_;
  boost::beast::http::request_parser<boost::beast::http::string_body> parser_;
  std::function<void(uint64_t size, Piece extensions, Error& error)> on_chunk_;
  std::chrono::steady_clock::time_point begin_;
  std::optional<HttpReply> refusal_;
  MemoryShare head_memory_;
  MemoryShare body_memory_;
  size_t head_bytes_ = 0;  // parsed so far
  size_t num_lines_ = 0;   // of the head
  char last_byte_ = 0;     // of the head so far
  bool folded_ = false;
  size_t extension_bytes_ = 0;  // of all chunks
};

}  // namespace warprow
