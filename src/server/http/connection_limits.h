// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace warprow {

// Limits the number of connections, in total and per client address.
//
// Thread: one.
class ConnectionLimits {
 public:
  // most_per_address: the default is kMostPerAddress. The default does not apply to loopback addresses and Unix
  // sockets, because a proxy may be behind them.
  ConnectionLimits(size_t most, std::optional<size_t> most_per_address)
      : most_(most), most_per_address_(most_per_address) {}

  static constexpr size_t kMostPerAddress = 256;

  // Each true needs a leave() later. address: ClientAddress::group.
  [[nodiscard]] bool enter(const std::string& address, bool is_local);
  void leave(const std::string& address);

 private:
  size_t most_;
  std::optional<size_t> most_per_address_;
  size_t number_ = 0;
  std::map<std::string, size_t> by_address_;
};

}  // namespace warprow
