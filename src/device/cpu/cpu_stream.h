// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/cpu/compute_pool.h"
#include "device/graph.h"
#include "device/stream.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace warprow::cpu {

// One queued operation: a trivially copyable callable stored by value, as a kernel launch stores
// its parameters.
struct Command {
  static constexpr size_t kStorage = 640;
  using Run = void (*)(void* storage, ComputePool& pool);
  Run run = nullptr;
  const char* name = nullptr;
  alignas(16) std::byte storage[kStorage];
};

// A CPU stream's graph: its commands.
struct RecordedCommands final : public Graph {
  std::vector<Command> commands;
};

// A CPU stream: an in-order queue of commands that run on the compute pool. CpuStreamMode in cpu_device.h sets how
// and when they run.
class CpuStream : public Stream {
 public:
  // Enqueues f(ComputePool&). f is copied; what it points to must stay valid until it has run.
  template <typename F>
  void launch(const char* name, const F& f) {
    static_assert(std::is_trivially_copyable_v<F> && sizeof(F) <= Command::kStorage);
    if (recording_ != nullptr) {
      store(recording_->commands.emplace_back(), name, f);
      return;
    }
    Command* command = begin_command();
    if (command == nullptr) {
      return;  // shape-only stream
    }
    store(*command, name, f);
    end_command();
  }

  void begin_capture() override;
  std::unique_ptr<Graph> end_capture() override;
  void launch_graph(Graph& graph) override;

 protected:
  // The slot to fill, or null if the stream discards work; end_command publishes it.
  virtual Command* begin_command() = 0;
  virtual void end_command() = 0;

 private:
  template <typename F>
  static void store(Command& command, const char* name, const F& f) {
    command.name = name;
    ::new (static_cast<void*>(command.storage)) F(f);
    command.run = [](void* storage, ComputePool& pool) { (*static_cast<F*>(storage))(pool); };
  }

  std::unique_ptr<RecordedCommands> recording_;
};

inline CpuStream& as_cpu(Stream& stream) { return static_cast<CpuStream&>(stream); }

}  // namespace warprow::cpu
