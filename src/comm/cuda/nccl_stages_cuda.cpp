// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/nccl_stages.h"

#include "base/check.h"
#include "base/error.h"
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/cuda/nccl_library.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow::cuda {
namespace {

// Data on its way to an earlier stage. The copy frees the caller's memory at once.
//
// Owns: its stream, the copies and their events.
class LateSends {
 public:
  LateSends(int32_t device, int32_t num_slots)
      : device_(device), slots_(static_cast<size_t>(num_slots)) {
    WR_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (Slot& slot : slots_) {
      WR_CUDA(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming));
      WR_CUDA(cudaEventCreateWithFlags(&slot.sent, cudaEventDisableTiming));
      if (cudaMalloc(&slot.data, kMostResultBytes) != cudaSuccess) {
        throw StartupError(ErrorCode::kOutOfMemory, "the GPU has no memory left for NCCL");
      }
    }
  }
  ~LateSends() {
    cudaSetDevice(device_);
    for (const Slot& slot : slots_) {
      cudaFree(slot.data);
      cudaEventDestroy(slot.copied);
      cudaEventDestroy(slot.sent);
    }
    cudaStreamDestroy(stream_);
  }
  LateSends(const LateSends&) = delete;
  LateSends& operator=(const LateSends&) = delete;

  // send: enqueues an NCCL send of the copy on the stream.
  template <typename Send>
  void enqueue(cudaStream_t from, const std::byte* data, size_t bytes, Send send) {
    WR_CHECK_LE(bytes, kMostResultBytes);
    const Slot& slot = slots_[num_sent_++ % slots_.size()];
    WR_CUDA(cudaStreamWaitEvent(from, slot.sent));  // the send before from this slot
    WR_CUDA(cudaMemcpyAsync(slot.data, data, bytes, cudaMemcpyDeviceToDevice, from));
    WR_CUDA(cudaEventRecord(slot.copied, from));
    WR_CUDA(cudaStreamWaitEvent(stream_, slot.copied));
    send(static_cast<const std::byte*>(slot.data), stream_);
    WR_CUDA(cudaEventRecord(slot.sent, stream_));
  }

 private:
  struct Slot {
    void* data = nullptr;
    cudaEvent_t copied = nullptr;
    cudaEvent_t sent = nullptr;
  };

  int32_t device_;
  cudaStream_t stream_ = nullptr;
  std::vector<Slot> slots_;
  size_t num_sent_ = 0;
};

// A direction between two stages. NCCL runs the operations of a communicator one after another, so each direction has its
// own: a send that waits holds up no other.
struct Direction {
  Nccl::Comm comm = nullptr;
  std::unique_ptr<LateSends> late;  // of the sender, to an earlier stage
};

class NcclStages final : public Communicator {
 public:
  NcclStages(GroupPlace place, const AbortFlag& abort)
      : Communicator(place), nccl_(nccl()), abort_(abort) {}
  ~NcclStages() override {
    for (auto& [stages, direction] : directions_) {
      if (abort_.raised()) {  // the other stage may be gone, and destroy would wait for it
        nccl_.abort(direction.comm);
      } else {
        nccl_.destroy(direction.comm);
      }
    }
  }

  // Both stages call it at the same time, in the same order of directions.
  void open(int32_t from, int32_t to, const Nccl::Id& id) {
    Direction& direction = directions_[{from, to}];
    const bool sends = place().rank == from;
    const int result = nccl_.init_rank(&direction.comm, 2, id, sends ? 0 : 1);
    if (result != 0) {
      throw StartupError(
          ErrorCode::kUnsupported,
          fmt::format("NCCL ({}) cannot start: {}", nccl_.path, nccl_.error_string(result)));
    }
    if (sends && to < from) {
      int32_t device = 0;
      WR_CUDA(cudaGetDevice(&device));
      direction.late = std::make_unique<LateSends>(device, place().size + 1);
    }
  }

  void send(Stream& stream, const std::byte* data, size_t bytes, int32_t to) override {
    if (stream.discards() || bytes == 0) {
      return;
    }
    const Direction& direction = directions_.at({place().rank, to});
    const auto send = [&](const std::byte* from, cudaStream_t on) {
      WR_NCCL(nccl_.send(from, bytes, Nccl::kBytes, 1, direction.comm, on));
    };
    const cudaStream_t own = as_cuda(stream).handle();
    if (direction.late == nullptr) {
      send(data, own);
    } else {
      direction.late->enqueue(own, data, bytes, send);
    }
  }

  void receive(Stream& stream, std::byte* data, size_t bytes, int32_t from) override {
    if (!stream.discards() && bytes > 0) {
      const Direction& direction = directions_.at({from, place().rank});
      WR_NCCL(
          nccl_.receive(data, bytes, Nccl::kBytes, 0, direction.comm, as_cuda(stream).handle()));
    }
  }

  void all_reduce(Stream& /*stream*/, View<float, 2> /*values*/) override { not_of_stages(); }
  void all_gather(Stream& /*stream*/,
                  const std::byte* /*mine*/,
                  std::byte* /*all*/,
                  size_t /*bytes*/) override {
    not_of_stages();
  }
  void broadcast(Stream& /*stream*/,
                 std::byte* /*data*/,
                 size_t /*bytes*/,
                 int32_t /*root*/) override {
    not_of_stages();
  }
  void exchange_columns(Stream& /*stream*/,
                        View<const float, 2> /*mine*/,
                        View<float, 2> /*all*/) override {
    not_of_stages();
  }

 private:
  static void not_of_stages() { WR_CHECK(false, "stages send and receive, and no more"); }

  const Nccl& nccl_;
  const AbortFlag& abort_;
  std::map<std::pair<int32_t, int32_t>, Direction> directions_;  // by the stages from and to
};

// The directions in which stages send: to the next one, and from the last to all others.
std::vector<std::pair<int32_t, int32_t>> directions(int32_t num_stages) {
  std::vector<std::pair<int32_t, int32_t>> out;
  for (int32_t stage = 0; stage + 1 < num_stages; ++stage) {
    out.emplace_back(stage, stage + 1);
    out.emplace_back(num_stages - 1, stage);
  }
  return out;
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_stages(const RankPlace& place, HostGroup& all) {
  const GroupPlace stages = place.pipeline;
  if (stages.size == 1) {
    return nullptr;
  }
  const std::vector<std::pair<int32_t, int32_t>> wanted = directions(stages.size);
  // The sender makes the id of a direction. Each rank shows a place for every direction.
  std::string mine;
  for (const auto& [from, to] : wanted) {
    Nccl::Id id{};
    if (from == stages.rank) {
      WR_NCCL(nccl().get_id(&id));
    }
    mine.append(id.bytes, sizeof id.bytes);
  }
  const std::vector<std::string> ids = all.exchange(mine);
  auto made = std::make_unique<NcclStages>(stages, all.abort());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& [from, to] = wanted[i];
    if (from != stages.rank && to != stages.rank) {
      continue;
    }
    const auto sender = static_cast<size_t>(from * place.tensor.size + place.tensor.rank);
    Nccl::Id id{};
    WR_CHECK_EQ(ids[sender].size(), mine.size());
    std::memcpy(id.bytes, ids[sender].data() + i * sizeof id.bytes, sizeof id.bytes);
    made->open(from, to, id);
  }
  return made;
}

}  // namespace warprow::cuda
