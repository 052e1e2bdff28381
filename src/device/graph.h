// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow {

// Operations of one stream, recorded to be launched repeatedly (Stream::begin_capture). What the operations'
// arguments point to must outlive it.
class Graph {
 public:
  virtual ~Graph() = default;
};

}  // namespace warprow
