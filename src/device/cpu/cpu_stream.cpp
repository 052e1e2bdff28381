// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_stream.h"

#include <cstring>

namespace warprow::cpu {

void CpuStream::begin_capture() {
  WR_CHECK(recording_ == nullptr, "the stream is being captured already");
  recording_ = std::make_unique<RecordedCommands>();
}

std::unique_ptr<Graph> CpuStream::end_capture() {
  WR_CHECK(recording_ != nullptr, "no capture to end");
  return std::move(recording_);
}

void CpuStream::launch_graph(Graph& graph) {
  WR_CHECK(recording_ == nullptr, "a graph launched within a capture");
  for (const Command& recorded : static_cast<RecordedCommands&>(graph).commands) {
    Command* command = begin_command();
    if (command == nullptr) {
      return;
    }
    std::memcpy(static_cast<void*>(command), &recorded, sizeof(Command));
    end_command();
  }
}

}  // namespace warprow::cpu
