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

// A server's certificate and its demands on clients. Messages name the flags of `warprow serve`.
struct TlsServerOptions {
  // As Python's ssl.CERT_NONE, CERT_OPTIONAL and CERT_REQUIRED.
  enum class ClientCertificate { kIgnored, kOptional, kRequired };

  std::string certificate_file;  // PEM: the server's certificate, then the chain; empty: no TLS
  std::string key_file;          // PEM; empty: the key is in certificate_file
  std::string key_password;      // of an encrypted key
  std::string ca_file;           // PEM: CAs of client certificates; empty: none is requested
  std::optional<ClientCertificate> client_certificate;  // default: required if ca_file is set
};

// TLS 1.2 and 1.3 with OpenSSL's default ciphers. kNotFound, or kInvalidArgument with the flag, the file and the cause.
using TlsContext = std::unique_ptr<boost::asio::ssl::context>;
Result<TlsContext> server_tls_context(const TlsServerOptions& options);

// Verifies servers against ca_file. If it is empty, against the system's store, which SSL_CERT_FILE and SSL_CERT_DIR
// replace. Errors as above.
Result<TlsContext> client_tls_context(const std::string& ca_file);

// Makes a client's session accept only a certificate of `host`, a name or an address.
void expect_host(ssl_st* session, const std::string& host);

// The cause if a client's handshake failed because of the server's certificate; else empty.
std::string certificate_trouble(ssl_st* session);

}  // namespace warprow
