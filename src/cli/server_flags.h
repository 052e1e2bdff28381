// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/flag_set.h"
#include "client/http_client.h"

#include <memory>
#include <optional>
#include <string>

namespace warprow {

// The flags of a command that talks to a running server: --ssl-ca-certs, and --base-url, --host, --port,
// --api-key in the order of what counts more; then OPENAI_BASE_URL and OPENAI_API_KEY; then 127.0.0.1:8000.
//
// Thread: one. Outlives the FlagSet's parse.
class ServerFlags {
 public:
  explicit ServerFlags(FlagSet& flags);

  // A URL given as an argument, which counts most.
  void set_url(const std::string& url) { base_url_ = url; }

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

// Adds --ssl-ca-certs alone, for a command that names its server in another way.
void add_ca_flag(FlagSet& flags, std::optional<std::string>& ca_file);

// api_key: nothing means OPENAI_API_KEY, if that is set. ca_file: see HttpClient.
std::unique_ptr<HttpClient> connect_to(const HttpOrigin& origin,
                                       const std::optional<std::string>& api_key,
                                       const std::optional<std::string>& ca_file,
                                       std::chrono::seconds silence);

// The message in an answer with an error status: {"error":{"message":...}}, {"detail":...} or what
// stands there, as visible_text and cut at 200 characters; with the status in front, unless that is
// 200.
std::string refusal_text(const HttpAnswer& answer);

// The id of the first model that the server names.
Result<std::string> first_model(HttpClient& client);

}  // namespace warprow
