// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/answer_pool.h"
#include "server/api.h"
#include "server/http/byte_stream.h"
#include "server/http/client_address.h"
#include "server/http/host_rule.h"
#include "server/http/http_options.h"
#include "server/http/memory_budget.h"
#include "server/http/request_reader.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>

// For http/ alone: it shows Boost.
namespace warprow {

// Where a connection waits for its answer; shared with handlers that may come after its end.
struct Wakeup {
  explicit Wakeup(boost::asio::io_context& io) : timer(io) {}
  void set() {
    signalled = true;
    timer.cancel();
  }
  boost::asio::steady_timer timer;
  bool signalled = false;
  // Of the read that goes on while an answer is made.
  bool reading = false;
  size_t num_read = 0;
  bool gone = false;  // the client has closed its side
};

// What all connections of a server share.
struct ConnectionHost {
  const HttpOptions& options;
  boost::asio::io_context& io;
  AnswerPool& pool;
  Api& api;
  std::atomic<bool>& expired;  // answers that still run are given up
  HostRule host_rule;
  bool bars_foreign_pages = false;           // web pages of other origins may not post
  boost::asio::ssl::context* tls = nullptr;  // none: plain HTTP
  MemoryBudget memory;
  std::mt19937_64 random{std::random_device{}()};
  bool draining = false;  // connections end with their answers
  bool closing = false;   // connections without a request end
};

// One client's connection: requests in, answers out, one after the other.
//
// Thread: the io_context's.
class Connection {
 public:
  Connection(ConnectionHost& host, ByteSocket socket, const ClientAddress& client);

  // Until the client leaves, or the server does.
  boost::asio::awaitable<void> serve();

  [[nodiscard]] bool busy() const { return busy_; }
  // Ends reads and writes that are under way.
  void cancel() { stream_.next().cancel(); }
  // Lets it look at the host's flags.
  void wake();

 private:
  template <typename T>
  using Task = boost::asio::awaitable<T>;
  // The request under way, as its answer needs it.
  struct Exchange {
    unsigned version = 11;
    bool keep = true;
    bool head_only = false;
    std::string request_id;
    HttpHeaders cors;
  };

  Task<bool> begin();  // false: there is no room for it
  Task<bool> shake_hands();
  Task<bool> wait_for_bytes();
  Task<void> refuse(HttpReply reply);  // what is no request
  // These return whether the connection can go on.
  Task<bool> serve_request();
  Task<bool> answer(HttpRequest request, MemoryShare memory);
  // Of a body, which is not read, it takes up to so many bytes, so that the client sees the refusal.
  Task<bool> refuse_request(HttpReply reply, bool has_body, size_t most_bytes);
  Task<bool> send_reply(HttpReply reply);
  Task<bool> send_generation(Generation& generation);
  Task<bool> send_events_until_end(Generation& generation, bool chunked);
  Task<bool> send_head(const Generation& generation);
  Task<bool> send_events(std::string events, bool chunked);

  // memory: of the request, until it is not needed any more.
  Task<Api::Answer> make_answer(HttpRequest request, MemoryShare memory);
  Task<bool> wait_for_wake(bool as_stream);  // false: the client has gone
  // Takes up to so many bytes more before the connection is closed.
  Task<void> linger(size_t most_bytes);
  Task<void> say_farewell();  // the end of what is sent
  // Writes all of it; false: the client has gone, or took nothing for write_timeout.
  template <typename Buffers>
  Task<bool> write(Buffers buffers);
  void watch();  // for the client's end, while an answer is made; again after each wake
  Task<void> end_watch();
  [[nodiscard]] uint64_t least_memory() const;
  void trim_buffer();  // between requests
  [[nodiscard]] HttpRequest begin_exchange(const RequestReader::Head& head);
  // A refusal that needs no body; nullopt: the request is good so far.
  [[nodiscard]] std::optional<HttpReply> judge(const HttpRequest& request,
                                               const RequestReader::Head& head) const;
  [[nodiscard]] std::optional<HttpReply> judge_sender(const RequestReader::Head& head) const;
  [[nodiscard]] HttpHeaders common_headers() const;
  [[nodiscard]] std::string made_id();
  void log(const AccessLine& line) const;

  ConnectionHost& host_;
  ByteStream stream_;
  boost::beast::flat_buffer buffer_;
  std::shared_ptr<Wakeup> wakeup_;  // of the request under way
  Exchange exchange_;
  AccessLine line_;
  std::string client_;
  std::string client_group_;
  MemoryShare memory_;
  bool busy_ = false;  // with a request that has been read
};

}  // namespace warprow
