// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_device.h"

#include "base/cpu_isa.h"
#include "base/error.h"
#include "device/cpu/command_queue.h"
#include "device/cpu/host_limits.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace warprow::cpu {
namespace {

size_t page_round(size_t bytes) {
  return round_up(bytes == 0 ? 1 : bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

std::byte* map_pages(size_t bytes, int protection, const char* what) {
  void* base = mmap(
      nullptr, page_round(bytes), protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw StartupError(ErrorCode::kOutOfMemory,
                       fmt::format("cannot reserve {} bytes of address space for {}", bytes, what));
  }
  return static_cast<std::byte*>(base);
}

class CpuDeviceImpl final : public CpuDevice, private CommandRunner {
 public:
  explicit CpuDeviceImpl(const CpuDeviceOptions& options) : options_(options) {
    if (options_.num_threads <= 0) {
      options_.num_threads = usable_cores();
    }
    pool_ = std::make_unique<ComputePool>(
        options_.num_threads, options_.pin_threads ? affinity_cores() : std::vector<int32_t>());
    facts_.kind = DeviceKind::kCpu;
    facts_.name = "cpu";
    facts_.total_bytes = usable_memory_bytes();
    facts_.free_bytes = facts_.total_bytes;
    facts_.num_threads = options_.num_threads;
    queue_ = make_command_queue(options_, *this);
  }

  const DeviceFacts& facts() const override { return facts_; }
  const CpuDeviceOptions& options() const override { return options_; }
  ComputePool& pool() override { return *pool_; }
  void set_gate(bool open) override { queue_->set_gate(open); }
  int64_t num_commands_run() const override { return commands_run_.load(); }

  std::unique_ptr<Stream> make_stream() override { return queue_->make_stream(*this); }
  std::unique_ptr<Event> make_event() override { return queue_->make_event(); }

  Arena make_arena(ArenaPurpose purpose, size_t bytes) override {
    std::byte* base = map_pages(
        bytes, options_.guard_arenas ? PROT_NONE : PROT_READ | PROT_WRITE, arena_name(purpose));
    if (purpose == ArenaPurpose::kWeights || purpose == ArenaPurpose::kWorkspace) {
      // Exactly as large as planned, and gone through in every step: huge pages save TLB misses. Advice only.
      madvise(base, page_round(bytes), MADV_HUGEPAGE);
    }
    const std::scoped_lock lock(arenas_mutex_);
    arenas_.push_back({base, page_round(bytes)});
    return {purpose,
            base,
            bytes,
            [this](std::byte* at, size_t size) { release_arena(at, size); },
            [base, bytes](bool resident) {
              if (!resident) {
                madvise(base, page_round(bytes), MADV_DONTNEED);
              }
            }};
  }

  PinnedBuffer make_pinned(size_t bytes) override {
    std::byte* base = map_pages(bytes, PROT_READ | PROT_WRITE, "pinned memory");
    pinned_bytes_ += static_cast<int64_t>(bytes);
    return {base, bytes, [this](std::byte* at, size_t size) {
              munmap(at, page_round(size));
              pinned_bytes_ -= static_cast<int64_t>(size);
            }};
  }
  int64_t pinned_bytes() const override { return pinned_bytes_; }

 private:
  struct Range {
    std::byte* base;
    size_t bytes;
  };

  // CommandRunner: with guarded arenas, device memory is accessible only while a command runs.
  void run(Command& command) override {
    if (options_.guard_arenas) {
      protect_arenas(PROT_READ | PROT_WRITE);
    }
    command.run(command.storage, *pool_);
    if (options_.guard_arenas) {
      protect_arenas(PROT_NONE);
    }
    commands_run_.fetch_add(1, std::memory_order_relaxed);
  }

  void protect_arenas(int protection) {
    const std::scoped_lock lock(arenas_mutex_);
    for (const Range& range : arenas_) {
      WR_CHECK(
          mprotect(range.base, range.bytes, protection) == 0, "mprotect: {}", std::strerror(errno));
    }
  }

  void release_arena(std::byte* base, size_t bytes) {
    const std::scoped_lock lock(arenas_mutex_);
    std::erase_if(arenas_, [base](const Range& range) { return range.base == base; });
    munmap(base, page_round(bytes));
  }

  CpuDeviceOptions options_;
  DeviceFacts facts_;
  std::unique_ptr<ComputePool> pool_;
  std::mutex arenas_mutex_;
  std::vector<Range> arenas_;
  std::atomic<int64_t> commands_run_{0};
  std::atomic<int64_t> pinned_bytes_{0};
  std::unique_ptr<CommandQueue> queue_;
};

}  // namespace

std::unique_ptr<CpuDevice> make_cpu_device(const CpuDeviceOptions& options) {
  static_cast<void>(cpu_isa());  // throws now rather than in a kernel
  return std::make_unique<CpuDeviceImpl>(options);
}

}  // namespace warprow::cpu
