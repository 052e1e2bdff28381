// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/maybe_tls.h"
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>

// Only for http/: this header includes Boost.
namespace warprow {

using ByteProtocol = boost::asio::generic::stream_protocol;  // TCP or Unix
using ByteSocket = boost::asio::basic_stream_socket<ByteProtocol>;
using ByteStream = MaybeTls<boost::beast::basic_stream<ByteProtocol>>;

}  // namespace warprow
