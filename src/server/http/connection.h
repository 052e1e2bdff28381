// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/answer_pool.h"
#include "server/api.h"
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
#include <string_view>

#include "net/byte_stream.h"
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>

// Only for http/: this header includes Boost.
namespace warprow {

// A connection waits on this for its answer. Shared with handlers that may run after the connection has ended.
struct Wakeup {
  explicit Wakeup(boost::asio::io_context& io) : timer(io) {}
  void set() {
    signalled = true;
    timer.cancel();
  }
  boost::asio::steady_timer timer;
  bool signalled = false;
  // State of the read that runs while an answer is made.
  bool reading = false;
  size_t num_read = 0;
  bool gone = false;  // the client has closed its side
};

// State that all connections of a server share.
struct ConnectionHost {
  const HttpOptions& options;
  boost::asio::io_context& io;
  AnswerPool& pool;
  Api& api;
  std::atomic<bool>& expired;  // running answers end with an error
  HostRule host_rule;
  bool bars_foreign_pages = false;           // refuse posts of web pages of other origins
  boost::asio::ssl::context* tls = nullptr;  // null: plain HTTP
  MemoryBudget memory;
  std::mt19937_64 random{std::random_device{}()};
  bool draining = false;  // a connection closes after its current answer
  bool closing = false;   // a connection without a request closes
};

// One client's connection. It handles one request after the other.
//
// Thread: the io_context's.
class Connection {
 public:
  Connection(ConnectionHost& host, ByteSocket socket, const ClientAddress& client);

  // Runs until the client or the server closes the connection.
  boost::asio::awaitable<void> serve();

  [[nodiscard]] bool busy() const { return busy_; }
  // Cancels pending reads and writes.
  void cancel() { stream_.cancel(); }
  // Wakes the connection so that it checks the host's flags.
  void wake();

 private:
  template <typename T>
  using Task = boost::asio::awaitable<T>;
  // The parts of the current request that its response needs.
  struct Exchange {
    unsigned version = 11;
    bool keep = true;
    bool head_only = false;
    std::string request_id;
    HttpHeaders cors;
  };

  Task<bool> begin();  // false: the memory budget has no room
  Task<bool> shake_hands();
  Task<bool> wait_for_bytes();
  Task<void> refuse(HttpReply reply);  // when there is no request to answer
  // These return whether the connection stays open.
  Task<bool> serve_request();
  Task<bool> answer(HttpRequest request, MemoryShare memory);
  // Sends a refusal without reading the body. Discards up to most_bytes of the body, so that the client sees the
  // refusal.
  Task<bool> refuse_request(HttpReply reply, bool has_body, size_t most_bytes);
  Task<bool> send_reply(HttpReply reply);
  Task<bool> send_generation(Generation& generation);
  Task<bool> send_events_until_end(Generation& generation, bool chunked);
  Task<bool> send_head(const Generation& generation);
  Task<bool> send_events(std::string events, bool chunked);

  // A request on its way through a lane of the pool.
  struct AnswerJob {
    HttpRequest request;
    Api::Answer answer;
    bool done = false;  // set and read on the io_context's thread
  };
  [[nodiscard]] Wake make_wake();
  Task<void> run(std::shared_ptr<AnswerJob> job, AnswerPool::Lane lane);
  // memory: the request's share of the budget, held until the request is no longer needed.
  Task<Api::Answer> make_answer(HttpRequest request, MemoryShare memory);
  Task<bool> wait_for_wake(bool as_stream);  // false: the client has disconnected
  // Discards up to most_bytes more bytes before the connection closes.
  Task<void> linger(size_t most_bytes);
  Task<void> say_farewell();  // ends the TLS stream
  // false: the client has disconnected, or read nothing for write_timeout.
  Task<bool> write(std::string_view bytes);
  void watch();  // for the client's close, while an answer is made; again after each wake
  Task<void> end_watch();
  [[nodiscard]] uint64_t least_memory() const;
  void trim_buffer();  // between requests
  [[nodiscard]] HttpRequest begin_exchange(const RequestReader::Head& head);
  // A refusal that does not depend on the body. nullopt: the request is valid so far.
  [[nodiscard]] std::optional<HttpReply> judge(const HttpRequest& request,
                                               const RequestReader::Head& head) const;
  [[nodiscard]] std::optional<HttpReply> judge_sender(const RequestReader::Head& head) const;
  [[nodiscard]] HttpHeaders common_headers() const;
  [[nodiscard]] std::string made_id();
  void log(const AccessLine& line) const;

  ConnectionHost& host_;
  ByteStream stream_;
  boost::beast::flat_buffer buffer_;
  std::shared_ptr<Wakeup> wakeup_;  // of the current request
  Exchange exchange_;
  AccessLine line_;
  std::string client_;
  std::string client_group_;
  MemoryShare memory_;
  bool busy_ = false;  // handles a request that has been read
};

}  // namespace warprow
