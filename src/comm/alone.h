// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"

#include <memory>

namespace warprow {

// A group of one rank, so that code for ranks needs no branches. Operations do nothing on any device where their
// result is in place already; where input and output differ, they copy, on a CPU stream. send and receive fail a check.
std::unique_ptr<Communicator> make_alone();

// A rank's place without the other ranks, to plan memory with: only for streams that discard work.
std::unique_ptr<Communicator> make_shape_only_communicator(GroupPlace place);

}  // namespace warprow
