// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_device.h"

#include "base/error.h"
#include "base/log.h"
#include "device/built_code.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_event.h"
#include "device/cuda/loaded_code.h"
#include "device/cuda/virtual_range.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <cuda_runtime_api.h>
#include <limits>
#include <sys/mman.h>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow::cuda {
namespace {

constexpr size_t kLargePinned = size_t{256} << 20;
constexpr size_t kTouchBytes = size_t{32} << 20;  // each thread takes this many at a time
constexpr int32_t kTouchThreads = 16;

// Empty if the device can be used, else the reason.
std::string missing(int ordinal) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaErrorInsufficientDriver) {
    return "no NVIDIA driver, or one too old for this build";
  }
  if (error != cudaSuccess || devices == 0) {
    return fmt::format("no CUDA device ({})", cudaGetErrorName(error));
  }
  if (ordinal < 0 || ordinal >= devices) {
    return fmt::format("no CUDA device {}: there are {}", ordinal, devices);
  }
  return {};
}

struct Memory {
  int64_t free = 0;
  int64_t total = 0;
};
// Reads the memory of the calling thread's current device.
Memory read_memory() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  WR_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

int32_t most_capability = std::numeric_limits<int32_t>::max();

// The capability that kernels may rely on. If the driver does not load binaries for sm_90a, a GPU of that
// capability counts as the one that the portable code was compiled for.
int32_t usable_capability(int32_t own) {
  constexpr int32_t kHopper = 90;
  const bool portable_only = own == kHopper && !loads_sm90_code();
  return std::min(most_capability, portable_only ? std::min(own, portable_code()) : own);
}

// Makes the device the calling thread's.
DeviceFacts read_facts(int ordinal) {
  WR_CUDA(cudaSetDevice(ordinal));
  cudaDeviceProp prop{};
  WR_CUDA(cudaGetDeviceProperties(&prop, ordinal));
  const Memory memory = read_memory();
  DeviceFacts facts;
  facts.kind = DeviceKind::kCuda;
  facts.name = prop.name;
  facts.total_bytes = memory.total;
  facts.free_bytes = memory.free;
  facts.compute_capability = 10 * prop.major + prop.minor;
  facts.num_sms = prop.multiProcessorCount;
  facts.max_shared_bytes = static_cast<int32_t>(prop.sharedMemPerBlockOptin);
  facts.ordinal = ordinal;
  facts.own_memory = true;
  facts.zeroed_memory = false;
  return facts;
}

StartupError cannot_pin(size_t bytes) {
  return {ErrorCode::kOutOfMemory, fmt::format("cannot pin {} bytes of host memory", bytes)};
}

// Both count the bytes in `live` until the buffer is released.
PinnedBuffer pin_small(size_t bytes, std::atomic<int64_t>& live) {
  void* base = nullptr;
  const size_t size = bytes == 0 ? 1 : bytes;
  if (cudaHostAlloc(&base, size, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) {
    throw cannot_pin(bytes);
  }
  std::memset(base, 0, size);
  live += static_cast<int64_t>(bytes);
  return {static_cast<std::byte*>(base), bytes, [&live](std::byte* at, size_t count) {
            cudaFreeHost(at);
            live -= static_cast<int64_t>(count);
          }};
}

// For gigabytes: the runtime would fault in page after page on one thread. Here several threads touch the pages,
// which the kernel zeroes, and the runtime only pins them.
PinnedBuffer pin_large(size_t bytes, std::atomic<int64_t>& live) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    throw cannot_pin(bytes);
  }
  madvise(base, bytes, MADV_HUGEPAGE);  // advice only
  auto* const first = static_cast<std::byte*>(base);
  std::atomic<size_t> next = 0;
  const auto touch = [first, bytes, &next] {
    constexpr size_t kPageBytes = 4096;
    for (size_t at = next.fetch_add(kTouchBytes); at < bytes; at = next.fetch_add(kTouchBytes)) {
      for (size_t end = std::min(bytes, at + kTouchBytes); at < end; at += kPageBytes) {
        *static_cast<volatile std::byte*>(first + at) = std::byte{0};
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int32_t i = 0; i < std::min(cpu::usable_cores(), kTouchThreads); ++i) {
      threads.emplace_back(touch);
    }
  }
  if (cudaHostRegister(base, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable) !=
      cudaSuccess) {
    munmap(base, bytes);
    throw cannot_pin(bytes);
  }
  live += static_cast<int64_t>(bytes);
  return {first, bytes, [&live](std::byte* at, size_t size) {
            cudaHostUnregister(at);
            munmap(at, size);
            live -= static_cast<int64_t>(size);
          }};
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, DeviceFacts facts) : ordinal_(ordinal), facts_(std::move(facts)) {}
  [[nodiscard]] const DeviceFacts& facts() const override { return facts_; }
  [[nodiscard]] int64_t free_bytes() const override { return read_memory().free; }
  void use_here() const override { WR_CUDA(cudaSetDevice(ordinal_)); }
  std::unique_ptr<Stream> make_stream() override { return make_cuda_stream(*this); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(); }

  Arena make_arena(ArenaPurpose purpose, size_t bytes) override {
    auto* range = new VirtualRange(ordinal_, bytes, arena_name(purpose));  // NOLINT: below
    return {purpose,
            range->base(),
            bytes,
            [range](std::byte*, size_t) { delete range; },  // NOLINT: the arena owns it
            [range](bool resident) { resident ? range->map() : range->unmap(); }};
  }

  PinnedBuffer make_pinned(size_t bytes) override {
    return bytes < kLargePinned ? pin_small(bytes, pinned_bytes_) : pin_large(bytes, pinned_bytes_);
  }
  [[nodiscard]] int64_t pinned_bytes() const override { return pinned_bytes_; }

 private:
  int ordinal_;
  DeviceFacts facts_;
  std::atomic<int64_t> pinned_bytes_ = 0;
};

}  // namespace

Availability find_device(int32_t ordinal) {
  Availability found;
  found.why_not = missing(ordinal);
  if (!found.why_not.empty()) {
    return found;
  }
  found.facts = read_facts(ordinal);
  found.why_not = why_no_code(WARPROW_CUDA_CODE, found.facts);
  if (found.why_not.empty() && portable_code() == 0) {
    found.why_not = fmt::format("GPU '{}': the driver loads none of this build's code ({})",
                                found.facts.name,
                                WARPROW_CUDA_CODE);
  }
  if (!found.why_not.empty()) {
    WR_LOG_WARN("{}", found.why_not);  // also where a CPU is used instead
    found.facts = {};
    return found;
  }
  found.facts.compute_capability = usable_capability(found.facts.compute_capability);
  return found;
}

void limit_compute_capability(int32_t most) { most_capability = most; }

std::unique_ptr<Device> make_cuda_device(int32_t ordinal) {
  Availability found = find_device(ordinal);
  if (!found.why_not.empty()) {
    throw StartupError(ErrorCode::kUnsupported, found.why_not);
  }
  if (const std::string note = untested_note(found.facts); !note.empty()) {
    WR_LOG_WARN("{}", note);
  }
  WR_CUDA(cudaSetDevice(ordinal));
  return std::make_unique<CudaDevice>(ordinal, std::move(found.facts));
}

}  // namespace warprow::cuda
