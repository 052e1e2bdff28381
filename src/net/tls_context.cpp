// SPDX-License-Identifier: Apache-2.0
#include "net/tls_context.h"

#include "base/check.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

namespace warprow {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

// Gives a clear error for a missing file; OpenSSL's message is not clear to users.
Result<void> check_readable(const char* flag, const std::string& path) {
  errno = 0;
  std::FILE* file = std::fopen(path.c_str(), "re");
  std::array<char, 1> byte{};
  const bool is_file = file != nullptr && std::fread(byte.data(), 1, 1, file) == 1;
  const std::string why = errno == 0 ? "is empty" : std::strerror(errno);
  if (file != nullptr) {
    (void)std::fclose(file);
  }
  return is_file ? Result<void>()
                 : fail(ErrorCode::kNotFound, fmt::format("--{} {}: {}", flag, path, why));
}

tl::unexpected<Error> refused(const char* flag, const std::string& path, const std::string& why) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("--{} {}: {}", flag, path, why));
}

TlsContext make_context(ssl::context::method method) {
  auto context = std::make_unique<ssl::context>(method);
  SSL_CTX* const native = context->native_handle();
  WR_CHECK(SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION) == 1, "OpenSSL without TLS 1.2");
  SSL_CTX_set_options(native, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);  // connections are idle most of the time
  return context;
}

Result<void> use_certificate(ssl::context& context, const std::string& path) {
  if (Result<void> readable = check_readable("ssl-certfile", path); !readable) {
    return readable;
  }
  error_code error;
  context.use_certificate_chain_file(path, error);
  if (error) {
    return refused("ssl-certfile", path, "no certificate in PEM form: " + error.message());
  }
  return {};
}

Result<void> use_key(ssl::context& context, const TlsServerOptions& options) {
  const bool is_apart = !options.key_file.empty();
  const std::string& path = is_apart ? options.key_file : options.certificate_file;
  if (Result<void> readable = check_readable("ssl-keyfile", path); !readable) {
    return readable;
  }
  // Without a callback OpenSSL would ask for the password on the terminal.
  bool was_asked = false;
  context.set_password_callback([&](size_t /*max*/, ssl::context::password_purpose /*purpose*/) {
    was_asked = true;
    return options.key_password;
  });
  error_code error;
  context.use_private_key_file(path, ssl::context::pem, error);
  context.set_password_callback(
      [](size_t /*max*/, ssl::context::password_purpose /*purpose*/) { return std::string(); });
  const bool differs = error ? ERR_GET_LIB(error.value()) == ERR_LIB_X509
                             : SSL_CTX_check_private_key(context.native_handle()) != 1;
  if (!error && !differs) {
    return {};
  }
  if (differs) {
    return refused(
        "ssl-keyfile", path, "is not the key of the certificate in " + options.certificate_file);
  }
  if (was_asked) {
    return refused("ssl-keyfile",
                   path,
                   options.key_password.empty()
                       ? "is encrypted and --ssl-keyfile-password is not given"
                       : "cannot be decrypted with --ssl-keyfile-password");
  }
  return refused(is_apart ? "ssl-keyfile" : "ssl-certfile",
                 path,
                 "no private key in PEM form" +
                     std::string(is_apart ? "" : " in it, and --ssl-keyfile is not given") + ": " +
                     error.message());
}

Result<void> trust(ssl::context& context, const std::string& path) {
  if (Result<void> readable = check_readable("ssl-ca-certs", path); !readable) {
    return readable;
  }
  error_code error;
  context.load_verify_file(path, error);
  return error ? refused("ssl-ca-certs", path, "no certificate in PEM form: " + error.message())
               : Result<void>();
}

}  // namespace

Result<TlsContext> server_tls_context(const TlsServerOptions& options) {
  using ClientCertificate = TlsServerOptions::ClientCertificate;
  TlsContext context = make_context(ssl::context::tls_server);
  Result<void> done = use_certificate(*context, options.certificate_file);
  if (done) {
    done = use_key(*context, options);
  }
  if (done && !options.ca_file.empty()) {
    done = trust(*context, options.ca_file);
    const auto wanted = options.client_certificate.value_or(ClientCertificate::kRequired);
    if (wanted != ClientCertificate::kIgnored) {
      const bool required = wanted == ClientCertificate::kRequired;
      context->set_verify_mode(ssl::verify_peer |
                               (required ? ssl::verify_fail_if_no_peer_cert : ssl::verify_none));
    }
    // OpenSSL needs a session id context, so that only sessions of this server can be resumed.
    constexpr std::array<unsigned char, 4> kName{'w', 'a', 'r', 'p'};
    SSL_CTX_set_session_id_context(context->native_handle(), kName.data(), kName.size());
  }
  if (!done) {
    return tl::unexpected(done.error());
  }
  return context;
}

Result<TlsContext> client_tls_context(const std::string& ca_file) {
  TlsContext context = make_context(ssl::context::tls_client);
  context->set_verify_mode(ssl::verify_peer);
  if (!ca_file.empty()) {
    return trust(*context, ca_file).map([&context] { return std::move(context); });
  }
  error_code error;
  context->set_default_verify_paths(error);
  if (error) {
    return fail(ErrorCode::kNotFound, "the system's certificates: " + error.message());
  }
  return context;
}

void expect_host(ssl_st* session, const std::string& host) {
  X509_VERIFY_PARAM* const parameters = SSL_get0_param(session);
  if (X509_VERIFY_PARAM_set1_ip_asc(parameters, host.c_str()) == 1) {
    return;
  }
  WR_CHECK(X509_VERIFY_PARAM_set1_host(parameters, host.c_str(), host.size()) == 1, "{}", host);
  WR_CHECK(SSL_set_tlsext_host_name(session, host.c_str()) == 1, "{}", host);
}

std::string certificate_trouble(ssl_st* session) {
  const long result = SSL_get_verify_result(session);
  return result == X509_V_OK ? "" : X509_verify_cert_error_string(result);
}

}  // namespace warprow
