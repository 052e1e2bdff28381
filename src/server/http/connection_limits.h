// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace warprow {

// How many connections there may be, in all and of one client address.
//
// Thread: one.
class ConnectionLimits {
 public:
  // most_per_address: without it kMostPerAddress, which does not hold for loopback addresses and Unix sockets, behind
  // which a proxy may stand.
  ConnectionLimits(size_t most, std::optional<size_t> most_per_address)
      : most_(most), most_per_address_(most_per_address) {}

  static constexpr size_t kMostPerAddress = 256;

  // Each true needs a leave() later. address: as client_group() gives it.
  [[nodiscard]] bool enter(const std::string& address, bool is_local);
  void leave(const std::string& address);

 private:
  size_t most_;
  std::optional<size_t> most_per_address_;
  size_t number_ = 0;
  std::map<std::string, size_t> by_address_;
};

}  // namespace warprow
