// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "server/http/request_reader.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>

namespace warprow::test {

struct ReadRequest {
  std::string method;
  std::string target;
  std::string body;
  bool operator==(const ReadRequest&) const = default;
};

// The requests that a server reads from one connection.
struct ReadRequests {
  std::vector<ReadRequest> good;
  int refused = 0;  // HTTP status of the refusal after them, or 0
  bool operator==(const ReadRequests&) const = default;
};

// A server's end of a connection. The test holds the client's end.
class RequestReading {
 public:
  // io must run nothing else.
  RequestReading(boost::asio::io_context& io, const HttpOptions& options)
      : io_(io), options_(options), client_(io) {
    int ends[2];
    WR_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    client_ = ByteSocket(io, ByteProtocol(AF_UNIX, 0), ends[0]);
    stream_ =
        std::make_unique<ByteStream>(nullptr, ByteSocket(io, ByteProtocol(AF_UNIX, 0), ends[1]));
    boost::asio::co_spawn(io, serve(), boost::asio::detached);
    poll();
  }
  ~RequestReading() {
    client_.close();
    while (!done_) {
      poll();
    }
    stream_.reset();
    poll();
  }
  RequestReading(const RequestReading&) = delete;
  RequestReading& operator=(const RequestReading&) = delete;

  // Sends one piece and returns after the server has read it. False: the server reads no more.
  bool send(std::string_view piece) {
    while (!piece.empty() && !done_) {
      boost::system::error_code error;
      piece.remove_prefix(
          client_.write_some(boost::asio::buffer(piece.data(), piece.size()), error));
      poll();
    }
    return !done_;
  }
  // Closes the client's end and returns what the server has read.
  ReadRequests finish() {
    client_.shutdown(ByteSocket::shutdown_send);
    while (!done_) {
      poll();
    }
    return std::move(read_);
  }

 private:
  void poll() {
    io_.restart();
    io_.poll();
  }

  // Reads like Connection::serve_request, until a request is refused.
  boost::asio::awaitable<void> serve() {
    bool good = true;
    while (good) {
      good = co_await read_request();
    }
    done_ = true;
  }

  boost::asio::awaitable<bool> read_request() {
    RequestReader reader(*stream_, buffer_, options_, memory_);
    bool good = co_await reader.read_head();
    if (good) {
      good = co_await reader.read_body();
    }
    if (good) {
      ReadRequest& request = read_.good.emplace_back();
      request.method = std::string(reader.head().method_string());
      request.target = std::string(reader.head().target());
      request.body = reader.take_body();
    } else if (const std::optional<HttpReply> reply = reader.take_refusal()) {
      read_.refused = reply->status;
    }
    co_return good;
  }

  boost::asio::io_context& io_;
  const HttpOptions& options_;
  MemoryBudget memory_{64 << 20};
  boost::beast::flat_buffer buffer_;
  ByteSocket client_;
  std::unique_ptr<ByteStream> stream_;
  ReadRequests read_;
  bool done_ = false;
};

}  // namespace warprow::test
