// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <memory>
#include <optional>
#include <string>

namespace boost::asio::ssl {
class context;  // NOLINT(readability-identifier-naming): Boost's name
}
struct ssl_st;  // OpenSSL's SSL

namespace warprow {

// What a server shows and asks for. Names of the flags in messages are those of `warprow serve`.
struct TlsServerOptions {
  // As Python's ssl.CERT_NONE, CERT_OPTIONAL and CERT_REQUIRED.
  enum class ClientCertificate { kIgnored, kOptional, kRequired };

  std::string certificate_file;  // PEM, the server's first, then the chain; empty: no TLS
  std::string key_file;          // PEM; empty: the key is in certificate_file
  std::string key_password;      // of an encrypted key
  std::string ca_file;  // PEM, who may have signed clients' certificates; empty: none is asked for
  std::optional<ClientCertificate> client_certificate;  // unset: required where ca_file is given
};

// TLS 1.2 and 1.3, OpenSSL's choice of ciphers. kNotFound, or kInvalidArgument with the flag, the file
// and what is wrong with it.
using TlsContext = std::unique_ptr<boost::asio::ssl::context>;
Result<TlsContext> server_tls_context(const TlsServerOptions& options);

// Verifies servers against ca_file, or if it is empty against the system's store (which SSL_CERT_FILE
// and SSL_CERT_DIR replace). Errors as above.
Result<TlsContext> client_tls_context(const std::string& ca_file);

// Lets a client's session accept `host` alone, a name or an address.
void expect_host(ssl_st* session, const std::string& host);

// Why a client's handshake failed, where the server's certificate was the reason; else empty.
std::string certificate_trouble(ssl_st* session);

}  // namespace warprow
