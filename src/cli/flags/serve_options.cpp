// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/serve_options.h"

#include "config/parse_size.h"
#include "server/api_keys.h"
#include "server/http/host_rule.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr const char* kServerGroup = "Server";

using Read = std::function<Result<void>(const std::string& text)>;

class Adder {
 public:
  explicit Adder(FlagSet& flags) : flags_(flags) {}

  void value(
      const char* name, const char* value, const char* help, Read read, bool common = false) {
    flags_.add_value(
        {.name = name, .value = value, .group = kServerGroup, .help = help, .common = common},
        std::move(read));
  }
  void on(const char* name, const char* help, bool& target) {
    flags_.add_switch(
        {.name = name, .value = "", .group = kServerGroup, .help = help, .common = false},
        [&target](bool is_on) { target = is_on; });
  }
  void text(const char* name, const char* value_name, const char* help, std::string& target) {
    value(name, value_name, help, [&target](const std::string& text) -> Result<void> {
      target = text;
      return {};
    });
  }
  // A number in [low, high], in the format of parse_size.
  template <typename T>
  void number(const char* name, const char* help, T& target, int64_t low, int64_t high) {
    value(name, "N", help, [&target, name, low, high](const std::string& text) -> Result<void> {
      const Result<int64_t> number = parse_size(text);
      if (!number || *number < low || *number > high) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("--{}: '{}' is no number of [{}, {}]", name, text, low, high));
      }
      target = T(*number);
      return {};
    });
  }
  void seconds(const char* name, const char* help, std::chrono::seconds& target) {
    constexpr int64_t kMonth = 31 * 86400;
    number(name, help, target, 0, kMonth);
  }

 private:
  FlagSet& flags_;
};

// Reads one text or a JSON list of texts, as vLLM's --allowed-origins.
Result<void> read_texts(const char* flag,
                        const std::string& text,
                        std::vector<std::string>& texts) {
  if (!text.starts_with('[')) {
    texts.push_back(text);
    return {};
  }
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  const bool good = list.is_array() && std::all_of(list.begin(), list.end(), [](const auto& one) {
                      return one.is_string();
                    });
  if (!good) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--{}: '{}' is no list of texts", flag, text));
  }
  for (const nlohmann::json& one : list) {
    texts.push_back(one.get<std::string>());
  }
  return {};
}

Result<void> read_access_log(const std::string& text, AccessLog& format) {
  if (text != "off" && text != "text" && text != "json") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--access-log: '{}' is none of off|text|json", text));
  }
  format = text == "off" ? AccessLog::kOff : text == "text" ? AccessLog::kText : AccessLog::kJson;
  return {};
}

// Reads one name or a JSON list of names, as for --allowed-origins.
Result<void> read_hosts(const std::string& text, std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  if (Result<void> read = read_texts("allowed-hosts", text, names); !read) {
    return read;
  }
  for (const std::string& name : names) {
    const std::optional<std::string> host = allowed_host(name);
    if (!host) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "--allowed-hosts: '{}' is no name or address of a host; ports are not part of it",
              name));
    }
    hosts.push_back(*host);
  }
  return {};
}

void add_address_flags(Adder& add, ServeOptions& options) {
  HttpOptions& http = options.http;
  add.value(
      "host",
      "ADDRESS",
      "address to listen on; 0.0.0.0 for every network [127.0.0.1]",
      [&http](const std::string& text) -> Result<void> {
        http.host = text;
        return {};
      },
      true);
  add.value(
      "port",
      "N",
      "port to listen on; 0: any free one [8000]",
      [&http](const std::string& text) -> Result<void> {
        const Result<int64_t> port = parse_size(text);
        if (!port || *port > std::numeric_limits<uint16_t>::max()) {
          return fail(ErrorCode::kInvalidArgument,
                      fmt::format("--port: '{}' is no port, must be 0 to 65535", text));
        }
        http.port = static_cast<uint16_t>(*port);
        return {};
      },
      true);
  add.text("uds", "PATH", "Unix socket to listen on, instead of host and port", http.uds);
  add.value(
      "allowed-origins",
      "ORIGIN",
      "origin whose web pages may call the server; * for all; may be given several times [none]",
      [&http](const std::string& text) {
        return read_texts("allowed-origins", text, http.cors.origins);
      });
  add.on("allow-credentials",
         "let those pages send cookies and authorization",
         http.cors.allow_credentials);
  add.value("allowed-hosts",
            "NAME",
            "name in Host that is answered beside localhost, 127.0.0.0/8 and [::1], where no key "
            "is needed "
            "on a loopback address; * for all; may be given several times [none]",
            [&http](const std::string& text) { return read_hosts(text, http.allowed_hosts); });
}

// The names are uvicorn's and vLLM's.
void add_tls_flags(Adder& add, TlsServerOptions& tls) {
  add.text("ssl-certfile",
           "PATH",
           "PEM file with the server's certificate and its chain: HTTPS instead of HTTP; "
           "read again, as the other files, when it changes and on SIGHUP",
           tls.certificate_file);
  add.text("ssl-keyfile", "PATH", "PEM file with its key [in --ssl-certfile]", tls.key_file);
  add.text("ssl-keyfile-password", "TEXT", "password of an encrypted key", tls.key_password);
  add.text("ssl-ca-certs",
           "PATH",
           "PEM file with the CAs that may sign clients' certificates",
           tls.ca_file);
  add.value("ssl-cert-reqs",
            "0|1|2",
            "whether clients' certificates are ignored, optional or required; 1 and 2 need "
            "--ssl-ca-certs [2 with it]",
            [&tls](const std::string& text) -> Result<void> {
              if (text != "0" && text != "1" && text != "2") {
                return fail(ErrorCode::kInvalidArgument,
                            fmt::format("--ssl-cert-reqs: '{}' is none of 0|1|2", text));
              }
              tls.client_certificate =
                  static_cast<TlsServerOptions::ClientCertificate>(text.front() - '0');
              return {};
            });
}

void add_limit_flags(Adder& add, ServeOptions& options) {
  constexpr int64_t kMany = 1'000'000'000;
  HttpOptions& http = options.http;
  add.number("max-queued-requests",
             "requests that may wait beside those that run; more are answered with 429 [2048]",
             options.api.max_queued,
             0,
             kMany);
  add.number("max-waiting-texts",
             "requests that may wait to be read and encoded, small and large ones apart; more are "
             "answered with 503 [2048]",
             http.max_waiting_texts,
             1,
             kMany);
  add.number("max-waiting-texts-per-client",
             "the same limit for one address and API key [1024]",
             http.max_waiting_texts_per_client,
             1,
             kMany);
  add.number(
      "max-body-bytes", "the largest body of a request [32MiB]", http.max_body_bytes, 1024, kMany);
  add.number("max-header-bytes",
             "the largest headers of a request [64KiB]",
             http.max_header_bytes,
             1024,
             kMany);
  add.number("max-buffered-bytes",
             "memory that all connections may hold together for requests; more are answered with "
             "503 [512MiB]",
             http.max_buffered_bytes,
             1024,
             1000 * kMany);
  add.number("max-connections",
             "connections at a time; more are answered with 503 [4096]",
             http.max_connections,
             1,
             kMany);
  add.number(
      "max-connections-per-address",
      "the same limit for one address, or /64 network of IPv6 [256; none for this machine's own]",
      http.max_connections_per_address,
      1,
      kMany);
  add.seconds("idle-timeout",
              "seconds after which a connection without a request is closed [120]",
              http.idle_timeout);
  add.seconds("header-timeout",
              "seconds that a request's headers may take to arrive [10]",
              http.header_timeout);
  add.seconds("read-timeout", "seconds that a request may take to arrive [60]", http.read_timeout);
  add.seconds("write-timeout",
              "seconds after which a client that reads nothing is disconnected [60]",
              http.write_timeout);
  add.seconds("sse-keep-alive",
              "seconds after which a silent stream gets a comment; 0: never [15]",
              http.keep_alive);
  add.seconds("shutdown-timeout",
              "seconds that answers may still take after SIGTERM [30]",
              http.shutdown_timeout);
}

void add_api_flags(Adder& add, ServeOptions& options) {
  ApiOptions& api = options.api;
  add.value(
      "api-key",
      "KEY",
      "what clients must send as Authorization: Bearer KEY, except to /, /docs, /health, /livez, "
      "/readyz and /ping; may be given several times",
      [&api](const std::string& text) -> Result<void> {
        return check_key("api-key", text).map([&] { api.api_keys.push_back(text); });
      },
      true);
  add.value("api-key-file",
            "PATH",
            "file with such keys, one a line; read again when it changes",
            [&api](const std::string& text) {
              return read_key_file(text).map(
                  [&](KeyFile file) { api.key_files.push_back(std::move(file)); });
            });
  add.value(
      "served-model-name",
      "NAME",
      "the model's name for clients; may be given several times, answers carry the first [MODEL]",
      [&api](const std::string& text) -> Result<void> {
        api.model_names.push_back(text);
        return {};
      },
      true);
  add.on(
      "strict", "refuse fields that are not known instead of naming them in a header", api.strict);
  add.on("trust-request-chat-template",
         "let chats bring a chat_template of their own; it runs with the limits of the model's",
         api.trust_request_chat_template);
  add.on("metrics-without-key", "answer /metrics without --api-key too", api.metrics_without_key);
  add.on("server-dev-mode",
         "with a key or for this machine alone, serve /sleep, /wake_up, /is_sleeping, "
         "/reset_prefix_cache, /pause, /resume, /is_paused, /server_info, /start_profile and "
         "/stop_profile",
         api.dev_endpoints);
  add.text("profile-dir",
           "DIR",
           "where /stop_profile writes its files; needs --server-dev-mode",
           api.profile_dir);
  add.on("enable-tokenizer-info-endpoint",
         "serve /tokenizer_info, which shows the chat template and special tokens",
         api.tokenizer_info);
  add.on("allow-lora-updates",
         "with a key or for this machine alone, serve /v1/load_lora_adapter and "
         "/v1/unload_lora_adapter; needs --enable-lora",
         api.lora_updates);
  add.value("otlp-traces-endpoint",
            "URL",
            "OpenTelemetry collector that gets a span of each request, by OTLP over HTTP in JSON; "
            "/v1/traces is its default path",
            [&options](const std::string& text) {
              return parse_span_target(text).map(
                  [&](SpanTarget target) { options.traces = std::move(target); });
            });
  add.value("access-log",
            "off|text|json",
            "a line on stderr for each answered request [off]",
            [&options](const std::string& text) {
              return read_access_log(text, options.http.access_log);
            });
}

}  // namespace

void add_serve_flags(FlagSet& flags, ServeOptions& options) {
  Adder add(flags);
  add_address_flags(add, options);
  add_tls_flags(add, options.http.tls);
  add_api_flags(add, options);
  add_parser_flags(flags, kServerGroup, options.parsers);
  add_limit_flags(add, options);
  add_record_flags(flags, kServerGroup, options.record);
}

}  // namespace warprow
