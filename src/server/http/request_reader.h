// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/http/byte_stream.h"
#include "server/http/http_options.h"
#include "server/http/memory_budget.h"
#include "server/http_message.h"

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

// For http/ alone: it shows Boost.
namespace warprow {

// Reads one request from a connection: first the head, and the body only when asked for it. Refuses every framing
// that another server might read differently, because what two servers cut differently lets one request hide in
// another's body (request smuggling).
//
// Thread: the io_context's. Errors: when a read fails, refusal() is what to answer; without one the client is gone
// or too slow.
class RequestReader {
 public:
  using Head = boost::beast::http::request<boost::beast::http::string_body>;

  // All must outlive it. buffer: bytes that were read ahead, before and after.
  RequestReader(ByteStream& stream,
                boost::beast::flat_buffer& buffer,
                const HttpOptions& options,
                MemoryBudget& memory);
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // The request line and the headers, within header_timeout.
  boost::asio::awaitable<bool> read_head();
  // What follows it, within read_timeout from the head's start. A client that waits for 100 Continue gets it.
  boost::asio::awaitable<bool> read_body();

  [[nodiscard]] const Head& head() const { return parser_.get(); }
  // Whether a body follows the head that has not been read.
  [[nodiscard]] bool has_body() const { return !parser_.is_done(); }
  std::string take_body() { return std::move(parser_.get().body()); }
  // What the body counts for, for as long as somebody holds it.
  MemoryShare take_body_memory() { return std::move(body_memory_); }
  std::optional<HttpReply> take_refusal() { return std::move(refusal_); }

 private:
  using Error = boost::system::error_code;
  using Piece = boost::beast::string_view;

  void start_clock();  // of the request's deadlines
  bool parse_head();   // what the buffer holds; false: refused
  [[nodiscard]] bool head_is_good();
  bool parse_body();
  // Looks for continuation lines among the next `size` bytes of the head.
  void look_for_folds(const char* bytes, size_t size);
  boost::asio::awaitable<bool> read_more(size_t piece);
  bool refuse(int status, std::string message);  // false
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
