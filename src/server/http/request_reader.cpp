// SPDX-License-Identifier: Apache-2.0
#include "server/http/request_reader.h"

#include "server/http/host_rule.h"
#include "server/response/api_error.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kHeadPiece = 4096;  // bytes of one read
constexpr size_t kBodyPiece = 64 * 1024;
// Each header takes memory in addition to its bytes, so the number of headers is limited too.
constexpr size_t kMostHeaderLines = 256;
// For a chunked body: the limit of all chunk extensions together, and of an incomplete chunk line or incomplete
// trailers. These bytes are not part of the body, so the body's limit does not cover them.
constexpr size_t kMostChunkExtras = 16 * 1024;
// "0\r\n\r\n": what is left of a chunked body is never less. Given less, the parser fails an assertion in builds that
// have them.
constexpr size_t kLeastOfChunks = 5;

HttpReply refusal_of(int status, std::string message) {
  return error_reply({status, "invalid_request_error", std::move(message)});
}

bool is_protocol_error(const error_code& error) {
  return error.category() == http::make_error_code(http::error::bad_method).category();
}

// nullopt: the framing is valid.
std::optional<std::string> framing_trouble(const RequestReader::Head& head) {
  const size_t num_encodings = head.count(http::field::transfer_encoding);
  if (num_encodings > 0) {
    if (head.version() < 11) {
      return "Transfer-Encoding: HTTP/1.0 has none";
    }
    if (num_encodings > 1 || !beast::iequals(head[http::field::transfer_encoding], "chunked")) {
      return "Transfer-Encoding: must be 'chunked' alone, once";
    }
    if (head.count(http::field::content_length) > 0) {
      return "Content-Length: must not stand beside Transfer-Encoding";
    }
  }
  if (head.count(http::field::content_length) > 1) {
    return "Content-Length: must stand once";
  }
  const auto length = head[http::field::content_length];
  if (!std::all_of(length.begin(), length.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return "Content-Length: must be one number";
  }
  return std::nullopt;
}

std::optional<std::string> host_trouble(const RequestReader::Head& head) {
  const size_t num_hosts = head.count(http::field::host);
  if (num_hosts == 0) {
    return head.version() < 11 ? std::nullopt : std::optional<std::string>("Host: missing");
  }
  if (num_hosts > 1) {
    return "Host: must stand once";
  }
  const auto host = head[http::field::host];
  return host_name({host.data(), host.size()})
             ? std::nullopt
             : std::optional<std::string>("Host: malformed, must be NAME or NAME:PORT");
}

}  // namespace

RequestReader::RequestReader(ByteStream& stream,
                             beast::flat_buffer& buffer,
                             const HttpOptions& options,
                             MemoryBudget& memory)
    : stream_(stream),
      buffer_(buffer),
      options_(options),
      on_chunk_([this](uint64_t /*size*/, Piece extensions, Error& error) {
        extension_bytes_ += extensions.size();
        error = extension_bytes_ > kMostChunkExtras
                    ? http::make_error_code(http::error::bad_chunk_extension)
                    : Error();
      }),
      head_memory_(memory, MemoryBudget::Use::kConnection),
      body_memory_(memory, MemoryBudget::Use::kBody) {
  parser_.header_limit(options.max_header_bytes);
  parser_.body_limit(
      boost::none);  // read_body checks the limit, so that a request without a key gets 401 first
  parser_.on_chunk_header(on_chunk_);
}

asio::awaitable<bool> RequestReader::read_head() {
  start_clock();
  bool good = parse_head();
  while (good && !parser_.is_header_done()) {
    good = co_await read_more(kHeadPiece);
    good = good && parse_head();
  }
  co_return good&& head_is_good();
}

void RequestReader::start_clock() {
  begin_ = std::chrono::steady_clock::now();
  stream_.expires_at(begin_ + std::min(options_.header_timeout, options_.read_timeout));
}

bool RequestReader::parse_head() {
  while (buffer_.size() > 0 && !parser_.is_header_done()) {
    const auto bytes = static_cast<const char*>(buffer_.data().data());
    Error error;
    const size_t num_parsed = parser_.put(buffer_.data(), error);
    look_for_folds(bytes, num_parsed);
    buffer_.consume(num_parsed);
    head_bytes_ += num_parsed;
    if (folded_) {
      return refuse(400, "headers must not go on in a line that begins with a space");
    }
    const bool is_incomplete = error == http::error::need_more;
    const size_t so_far = head_bytes_ + (is_incomplete ? buffer_.size() : 0);
    if (so_far > options_.max_header_bytes) {
      return refuse(http::make_error_code(http::error::header_limit));
    }
    if (num_lines_ > kMostHeaderLines) {
      return refuse(431, fmt::format("there are more than {} header lines", kMostHeaderLines));
    }
    if (!head_memory_.resize(buffer_.capacity() + 2 * head_bytes_)) {
      return refuse_for_memory();
    }
    if (is_incomplete) {
      return true;
    }
    if (error) {
      return refuse(error);
    }
  }
  return true;
}

// The parser joins continuation lines, so only its input shows them.
void RequestReader::look_for_folds(const char* bytes, size_t size) {
  for (const char byte : std::string_view(bytes, size)) {
    if (last_byte_ == '\n') {
      ++num_lines_;
      folded_ = folded_ || byte == ' ' || byte == '\t';
    }
    last_byte_ = byte;
  }
}

bool RequestReader::head_is_good() {
  for (const auto& trouble : {framing_trouble(head()), host_trouble(head())}) {
    if (trouble) {
      return refuse(400, *trouble);
    }
  }
  return true;
}

asio::awaitable<bool> RequestReader::read_body() {
  const auto length = parser_.content_length();
  if (length && *length > options_.max_body_bytes) {
    co_return refuse(http::make_error_code(http::error::body_limit));
  }
  parser_.body_limit(options_.max_body_bytes);
  if (has_body() && buffer_.size() == 0 &&
      beast::iequals(head()[http::field::expect], "100-continue")) {
    const Error error =
        co_await stream_.write("HTTP/1.1 100 Continue\r\n\r\n", options_.write_timeout);
    if (error) {
      co_return false;
    }
  }
  stream_.expires_at(begin_ + options_.read_timeout);
  parser_.eager(true);
  bool good = parse_body();
  while (good && has_body()) {
    good = co_await read_more(kBodyPiece);
    good = good && parse_body();
  }
  co_return good;
}

bool RequestReader::parse_body() {
  if (buffer_.size() < (parser_.chunked() ? kLeastOfChunks : 1) || !has_body()) {
    return true;
  }
  Error error;
  buffer_.consume(parser_.put(buffer_.data(), error));
  if (error && error != http::error::need_more) {
    return refuse(error);
  }
  // If the length is known, the parser reserves all of it at once. The memory is not resident before the bytes arrive.
  const std::string& body = parser_.get().body();
  const size_t body_bytes = parser_.chunked() ? body.capacity() : body.size();
  if (!body_memory_.resize(buffer_.capacity() + body_bytes)) {
    return refuse_for_memory();
  }
  // The rest of the buffer is an incomplete chunk line or incomplete trailers.
  if (has_body() && buffer_.size() > kMostChunkExtras) {
    return refuse(http::make_error_code(http::error::bad_chunk_extension));
  }
  return true;
}

asio::awaitable<bool> RequestReader::read_more(size_t piece) {
  const ByteStream::Transfer read = co_await stream_.read_some(buffer_.prepare(piece));
  buffer_.commit(read.num_bytes);
  co_return !read.error;
}

bool RequestReader::refuse(int status, std::string message) {
  refusal_ = refusal_of(status, std::move(message));
  return false;
}

bool RequestReader::refuse_for_memory() {
  refusal_ =
      overload_reply("requests together have reached their memory limit (--max-buffered-bytes)");
  return false;
}

bool RequestReader::refuse(const Error& error) {
  if (error == http::error::body_limit) {
    return refuse(413, fmt::format("the body is larger than {} bytes", options_.max_body_bytes));
  }
  if (error == http::error::header_limit) {
    return refuse(431,
                  fmt::format("the headers are larger than {} bytes", options_.max_header_bytes));
  }
  if (error == http::error::bad_chunk_extension) {
    return refuse(
        400,
        fmt::format("the chunk extensions or trailers are malformed or larger than {} bytes",
                    kMostChunkExtras));
  }
  return is_protocol_error(error) && refuse(400, "not HTTP: " + error.message());
}

}  // namespace warprow
