// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// The name in a Host header's value, in lower case, without the port; an IPv6 address without its brackets.
// nullopt: the value is malformed. A name may hold letters, digits, '-', '.' and '_'; a port is 0 to 65535.
std::optional<std::string> host_name(std::string_view value);

// An entry of HostRule::allowed: "*", or a name or address without a port. nullopt: the text is neither.
std::optional<std::string> allowed_host(std::string_view text);

// "localhost", an address of 127.0.0.0/8, or ::1.
bool is_loopback_name(std::string_view name);

// The host names that a server accepts. An attacker can point the name of a web page at 127.0.0.1 (DNS rebinding). Such
// a page sends its own name as Host, and this rule refuses it.
struct HostRule {
  bool guarded = false;              // accept only loopback names and `allowed`; else every name
  std::vector<std::string> allowed;  // names as host_name() gives them; "*": every name

  [[nodiscard]] bool allows(std::string_view name) const;
};

}  // namespace warprow
