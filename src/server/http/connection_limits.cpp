// SPDX-License-Identifier: Apache-2.0
#include "server/http/connection_limits.h"

#include "base/check.h"

namespace warprow {

bool ConnectionLimits::enter(const std::string& address, bool is_local) {
  const auto found = by_address_.find(address);
  const size_t of_address = found == by_address_.end() ? 0 : found->second;
  const bool is_bounded = most_per_address_ || !is_local;
  if (number_ >= most_ ||
      (is_bounded && of_address >= most_per_address_.value_or(kMostPerAddress))) {
    return false;
  }
  ++number_;
  ++by_address_[address];
  return true;
}

void ConnectionLimits::leave(const std::string& address) {
  const auto found = by_address_.find(address);
  WR_CHECK(found != by_address_.end());
  --number_;
  if (--found->second == 0) {
    by_address_.erase(found);
  }
}

}  // namespace warprow
