// SPDX-License-Identifier: Apache-2.0
// The client against a server that sends on each connection exactly the bytes that the test sets.
#include "client/http_client.h"

#include <arpa/inet.h>
#include <atomic>
#include <chrono>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// On connection i, answers consecutive requests with the texts of script[i], then closes the connection.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::vector<std::string>> script)
      : script_(std::move(script)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, generic, size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, generic, &size), 0);
    origin_.port = std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~ScriptedServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  [[nodiscard]] const HttpOrigin& origin() const { return origin_; }
  [[nodiscard]] int num_connections() const { return num_connections_; }
  // Called after the client has received its answers.
  [[nodiscard]] const std::vector<std::string>& requests() const { return requests_; }

 private:
  void serve() {
    for (const std::vector<std::string>& answers : script_) {
      const int connection = accept(listener_, nullptr, nullptr);
      if (connection < 0) {
        return;
      }
      ++num_connections_;
      for (const std::string& answer : answers) {
        requests_.push_back(read_request(connection));
        send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
      }
      close(connection);
    }
  }

  static std::string read_request(int connection) {
    std::string out;
    char bytes[4096];
    while (true) {
      const size_t head = out.find("\r\n\r\n");
      const size_t length = out.find("Content-Length: ");
      if (head != std::string::npos &&
          (length == std::string::npos ||
           out.size() >= head + 4 + std::stoul(out.substr(length + 16)))) {
        return out;
      }
      const ssize_t count = recv(connection, bytes, sizeof(bytes), 0);
      if (count <= 0) {
        return out;
      }
      out.append(bytes, static_cast<size_t>(count));
    }
  }

  std::vector<std::vector<std::string>> script_;
  HttpOrigin origin_;
  int listener_;
  std::atomic<int> num_connections_{0};
  std::vector<std::string> requests_;
  std::thread thread_;
};

std::string answer_with(const std::string& body, const std::string& status = "200 OK") {
  return "HTTP/1.1 " + status +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

constexpr HttpClient::Limits kPatient{.connect = std::chrono::seconds(60),
                                      .silence = std::chrono::seconds(60)};

TEST(HttpClient, KeepsItsConnection) {
  ScriptedServer server({{answer_with("one"), answer_with("no", "404 Not Found")}});
  HttpClient client(server.origin(), {{"Authorization", "Bearer k"}}, kPatient);
  const Result<HttpAnswer> first = client.ask({.method = "POST", .path = "/a?b=1", .body = "{}"});
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->status, 200);
  EXPECT_EQ(first->body, "one");
  EXPECT_EQ(first->content_type, "application/json");
  const Result<HttpAnswer> second = client.ask({.path = "/c"});
  ASSERT_TRUE(second);
  EXPECT_EQ(second->status, 404);
  EXPECT_EQ(second->body, "no");
  EXPECT_EQ(server.num_connections(), 1);
  EXPECT_THAT(server.requests()[0], StartsWith("POST /a?b=1 HTTP/1.1\r\n"));
  EXPECT_THAT(server.requests()[0], HasSubstr("Authorization: Bearer k\r\n"));
  EXPECT_THAT(server.requests()[0], HasSubstr("Host: " + server.origin().authority() + "\r\n"));
  EXPECT_THAT(server.requests()[0], ::testing::EndsWith("\r\n\r\n{}"));
  EXPECT_THAT(server.requests()[1], StartsWith("GET /c HTTP/1.1\r\n"));
}

TEST(HttpClient, AConnectionThatWasClosedMeanwhileIsReplaced) {
  ScriptedServer server({{answer_with("one")}, {answer_with("two")}});
  HttpClient client(server.origin(), {}, kPatient);
  EXPECT_EQ(client.ask({})->body, "one");
  EXPECT_EQ(client.ask({})->body, "two");
  EXPECT_EQ(server.num_connections(), 2);
}

TEST(HttpClient, PiecesComeAsTheyArrive) {
  ScriptedServer server(
      {{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"}});
  HttpClient client(server.origin(), {}, kPatient);
  std::vector<std::string> pieces;
  HttpCall call;
  call.on_piece = [&pieces](std::string_view piece) {
    pieces.emplace_back(piece);
    return true;
  };
  const Result<HttpAnswer> answer = client.ask(std::move(call));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_THAT(pieces, ElementsAre("abc", "de"));
  EXPECT_EQ(answer->body, "");
}

TEST(HttpClient, AnErrorsBodyIsNotCutIntoPieces) {
  ScriptedServer server({{answer_with("why", "400 Bad Request")}});
  HttpClient client(server.origin(), {}, kPatient);
  HttpCall call;
  call.on_piece = [](std::string_view) { return false; };
  const Result<HttpAnswer> answer = client.ask(std::move(call));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 400);
  EXPECT_EQ(answer->body, "why");
}

TEST(HttpClient, FailuresSayWhatHappened) {
  ScriptedServer server({{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"},
                         {"what?\r\n\r\n"},
                         {answer_with("pieces")}});
  HttpClient client(server.origin(), {}, kPatient);
  EXPECT_THAT(client.ask({}).error().message, HasSubstr("closed the connection"));
  EXPECT_EQ(client.ask({}).error().code, ErrorCode::kInternal);
  HttpCall stopped;
  stopped.on_piece = [](std::string_view) { return false; };
  EXPECT_THAT(client.ask(std::move(stopped)).error().message, HasSubstr("given up"));
}

TEST(HttpClient, ASilentServerAndNoServer) {
  ScriptedServer server({{"", answer_with("never")}});
  HttpClient::Limits hasty = kPatient;
  hasty.silence = std::chrono::seconds(1);
  HttpClient client(server.origin(), {}, hasty);
  EXPECT_THAT(client.ask({}).error().message, HasSubstr("no answer for 1 s"));
  HttpOrigin nobody;
  nobody.port = "1";
  EXPECT_EQ(HttpClient(nobody, {}, kPatient).ask({}).error().code, ErrorCode::kNotFound);
}

TEST(HttpClient, DroppedCallsEnd) {
  ScriptedServer server({{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegun", "never"}, {}});
  HttpClient client(server.origin(), {}, kPatient);
  std::string begun;
  std::string error;
  client.start(
      {.on_piece =
           [&begun](std::string_view piece) {
             begun += piece;
             return true;
           },
       .on_end = [&error](const Result<HttpAnswer>& answer) { error = answer.error().message; }});
  while (begun.empty()) {
    ASSERT_TRUE(client.run_for(std::chrono::milliseconds(1)));
  }
  client.drop_all();
  client.run();
  EXPECT_EQ(begun, "begun");
  EXPECT_THAT(error, HasSubstr("dropped"));
}

TEST(HttpClient, CallsRunAtTheSameTimeAndTimersInOrder) {
  ScriptedServer server({{answer_with("a")}, {answer_with("b")}});
  HttpClient client(server.origin(), {}, kPatient);
  std::vector<std::string> seen;
  const auto now = HttpClient::Clock::now();
  client.at(now + std::chrono::milliseconds(60), [&seen] { seen.emplace_back("late"); });
  client.at(now + std::chrono::milliseconds(30), [&seen] { seen.emplace_back("early"); });
  int num_answers = 0;
  for (int i = 0; i < 2; ++i) {
    HttpCall call;
    call.on_end = [&num_answers](const Result<HttpAnswer>& answer) {
      num_answers += answer ? 1 : 0;
    };
    client.start(std::move(call));
  }
  client.run_for(std::chrono::milliseconds(1));
  client.run();
  EXPECT_EQ(num_answers, 2);
  EXPECT_EQ(server.num_connections(), 2);
  EXPECT_THAT(seen, ElementsAre("early", "late"));
}

}  // namespace
}  // namespace warprow
