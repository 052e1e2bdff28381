// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "comm/tcp/tcp_host_group.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace warprow {

// The memory that one rank's communicator takes.
size_t tcp_communicator_bytes(int32_t size);

// One rank's communicator over CPU streams, with connections of its own to the other members of its group. As
// TcpHostGroup::connect: all ranks of the host group call it at the same time, each with the members of its own group,
// as ranks in ascending order. The host group outlives it.
std::unique_ptr<Communicator> make_tcp_communicator(TcpHostGroup& group,
                                                    const std::vector<int32_t>& members);
// Over connections that were made. With `outbox_bytes` a send waits only if a member has not read this many bytes: the last
// stage of a pipeline must not wait for a stage that waits for it (runner/stage_link.h). The group then only sends and
// receives.
std::unique_ptr<Communicator> make_tcp_communicator(TcpMesh mesh,
                                                    AbortFlag& abort,
                                                    size_t outbox_bytes = 0);

}  // namespace warprow
