// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/hello.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr char kMagic[8] = {'w', 'a', 'r', 'p', 'r', 'a', 'n', 'k'};
constexpr uint32_t kVersion = 1;
constexpr std::chrono::seconds kHelloTime{2};

// The same in all versions.
struct Opening {
  char magic[8];
  uint32_t version;
};

struct HelloMessage {
  uint32_t mesh;
  int32_t rank;
  int32_t size;
  char run_id[kMostRunId + 1];
};

}  // namespace

SocketResult send_hello(const Socket& socket, const Hello& hello, const Patience& patience) {
  Opening opening{};
  std::memcpy(opening.magic, kMagic, sizeof(kMagic));
  opening.version = kVersion;
  HelloMessage message{};
  message.mesh = hello.mesh;
  message.rank = hello.place.rank;
  message.size = hello.place.size;
  std::memcpy(message.run_id, hello.run_id.data(), std::min(hello.run_id.size(), kMostRunId));
  const SocketResult result = send_value(socket, opening, patience);
  return result == SocketResult::kDone ? send_value(socket, message, patience) : result;
}

ReceivedHello receive_hello(const Socket& socket, const Patience& patience) {
  const Patience brief{std::min(patience.deadline, std::chrono::steady_clock::now() + kHelloTime),
                       patience.abort};
  Opening opening{};
  if (receive_value(socket, opening, brief) != SocketResult::kDone ||
      std::memcmp(opening.magic, kMagic, sizeof(kMagic)) != 0) {
    return {.hello = {}, .why_not = "it is not a rank of warprow"};
  }
  if (opening.version != kVersion) {
    return {.hello = {},
            .why_not = fmt::format("it speaks version {} of the protocol between ranks, not {}",
                                   opening.version,
                                   kVersion)};
  }
  HelloMessage message{};
  if (receive_value(socket, message, brief) != SocketResult::kDone) {
    return {.hello = {}, .why_not = "its first message has no end"};
  }
  message.run_id[kMostRunId] = '\0';
  return {.hello = Hello{message.mesh, {message.rank, message.size}, message.run_id},
          .why_not = {}};
}

}  // namespace warprow
