// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flags/flag_set.h"
#include "client/http_client.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// The flags of a command that connects to a running server: --ssl-ca-certs, and in the order of precedence --base-url,
// --host, --port, --api-key. Then OPENAI_BASE_URL and OPENAI_API_KEY count, then the default 127.0.0.1:8000.
//
// Thread: one. Outlives the FlagSet's parse.
class ServerFlags {
 public:
  explicit ServerFlags(FlagSet& flags);

  [[nodiscard]] Result<HttpOrigin> origin() const;
  // silence: see HttpClient::Limits.
  [[nodiscard]] Result<std::unique_ptr<HttpClient>> connect(std::chrono::seconds silence) const;

 private:
  std::optional<std::string> base_url_;
  std::optional<std::string> host_;
  std::optional<std::string> port_;
  std::optional<std::string> api_key_;
  std::optional<std::string> ca_file_;
};

// Refuses arguments that belong to no flag: such a command takes its server from --base-url alone.
Result<void> no_more_arguments(const std::vector<std::string>& arguments);

// Adds only --ssl-ca-certs, for a command with other flags for the server.
void add_ca_flag(FlagSet& flags, std::optional<std::string>& ca_file);

// api_key: nullopt means OPENAI_API_KEY, if set. ca_file: see HttpClient.
std::unique_ptr<HttpClient> connect_to(const HttpOrigin& origin,
                                       const std::optional<std::string>& api_key,
                                       const std::optional<std::string>& ca_file,
                                       std::chrono::seconds silence);

// The message of a response with an error status: {"error":{"message":...}}, {"detail":...} or the body itself, as
// visible_text and cut at 200 characters. The status precedes it, unless the status is 200.
std::string refusal_text(const HttpAnswer& answer);

// The id of the first model in the server's list.
Result<std::string> first_model(HttpClient& client);

}  // namespace warprow
