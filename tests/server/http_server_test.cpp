// SPDX-License-Identifier: Apache-2.0
// Listening addresses. Requests over them are tested end to end.
#include "server/http/http_server.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

class UnixSocket : public ::testing::Test {
 protected:
  UnixSocket() : path_(::testing::TempDir() + "warprow-" + std::to_string(getpid())) {
    options_.uds = path_;
  }
  ~UnixSocket() override { std::filesystem::remove(path_); }

  [[nodiscard]] bool can_connect() const {
    const int client = socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un address = address_of(path_);
    const int error = connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    close(client);
    return error == 0;
  }

  std::string path_;
  HttpOptions options_;
};

TEST_F(UnixSocket, OneThatIsServedIsLeftAloneAlsoBeforeRun) {
  const auto first = HttpServer::listen(options_);
  ASSERT_TRUE(first);
  const auto second = HttpServer::listen(options_);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("in use"));
  EXPECT_TRUE(can_connect());
}

TEST_F(UnixSocket, ALeftoverIsReplaced) {
  const int left = socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un address = address_of(path_);
  ASSERT_EQ(bind(left, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  close(left);
  {
    const auto server = HttpServer::listen(options_);
    ASSERT_TRUE(server);
    EXPECT_TRUE(can_connect());
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixSocket, AnotherFileIsNoLeftover) {
  std::ofstream(path_) << "precious";
  const auto server = HttpServer::listen(options_);
  ASSERT_FALSE(server);
  EXPECT_THAT(server.error().message, HasSubstr(path_));
  EXPECT_EQ(std::filesystem::file_size(path_), 8U);
}

TEST_F(UnixSocket, OnlyTheOwnOneGoesWithTheServer) {
  auto first = HttpServer::listen(options_);
  ASSERT_TRUE(first);
  std::filesystem::remove(path_);  // as another process might do
  const auto second = HttpServer::listen(options_);
  ASSERT_TRUE(second);
  first->reset();
  EXPECT_TRUE(can_connect());
}

TEST(Port, IsInUseBeforeRun) {
  // A bound socket that does not listen blocks its port for others, except with SO_REUSEADDR.
  const int holder = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  ASSERT_EQ(setsockopt(holder, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(holder, reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(holder, reinterpret_cast<sockaddr*>(&address), &size), 0);
  HttpOptions options;
  options.port = ntohs(address.sin_port);
  const auto first = HttpServer::listen(options);
  ASSERT_TRUE(first);
  const auto second = HttpServer::listen(options);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("in use"));
  close(holder);
}

}  // namespace
}  // namespace warprow
