// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/cuda_ranks.h"

#include "base/error.h"
#include "base/log.h"
#include "comm/cuda/abort_word.h"
#include "comm/cuda/nccl_communicator.h"
#include "comm/cuda/peer_communicator.h"
#include "comm/cuda/peer_memory.h"
#include "comm/cuda/peer_sizes.h"
#include "comm/share_memory.h"
#include "device/cuda/cuda_check.h"

#include <algorithm>
#include <cuda_runtime_api.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow::cuda {
namespace {

// The GPU, the same in every process that sees it.
std::string gpu_id(int32_t ordinal) {
  cudaDeviceProp prop{};
  WR_CUDA(cudaGetDeviceProperties(&prop, ordinal));
  return {prop.uuid.bytes, sizeof prop.uuid.bytes};
}

class Joined final : public CudaRanks {
 public:
  Joined(const Device& device, const RankPlace& place, HostGroup& all, GpuTransport transport)
      : place_(place), all_(all), abort_(all.abort()) {
    warn_of_shared_gpus(device.facts().ordinal);
    std::string why = transport == GpuTransport::kNccl ? "--rank-transport is nccl" : reach_peers();
    why = first_of_all(why);
    if (why.empty()) {
      for (const auto& [memory, comm] :
           {std::pair(&tensor_memory_, &tensor_), std::pair(&stage_memory_, &pipeline_)}) {
        if (*memory) {
          *comm = make_peer_communicator((*memory)->group(abort_.word()));
        }
      }
      return;
    }
    if (place.pipeline.size > 1) {
      throw StartupError(ErrorCode::kUnsupported,
                         fmt::format("--pipeline-parallel-size: stages on GPUs exchange through "
                                     "each other's memory, and NCCL is for tensor parallelism "
                                     "alone ({})",
                                     why));
    }
    if (place.rank == 0) {
      WR_LOG_INFO("ranks exchange with NCCL: {}", why);
    }
    tensor_memory_.reset();
    tensor_ = make_nccl_communicator(place, all);
  }

  [[nodiscard]] Communicator* tensor() const override { return tensor_.get(); }
  [[nodiscard]] Communicator* pipeline() const override { return pipeline_.get(); }

 private:
  // Makes the regions and maps those of the others. Returns why it cannot; "" if it could.
  std::string reach_peers() {
    if (std::max(place_.tensor.size, place_.pipeline.size) > kMaxPeers) {
      return fmt::format("groups of more than {} ranks", kMaxPeers);
    }
    std::vector<std::string> marks = all_.exchange(host_mark());
    if (std::ranges::any_of(marks,
                            [&](const std::string& mark) { return mark != marks.front(); })) {
      return "they are on several hosts";
    }
    if (place_.tensor.size > 1) {
      tensor_memory_.emplace(place_.tensor, tensor_sizes());
    }
    if (place_.pipeline.size > 1) {
      stage_memory_.emplace(place_.pipeline, stage_sizes(place_.pipeline.size));
    }
    const int32_t stage = place_.tensor.size;
    std::string why = open(tensor_memory_, {place_.pipeline.rank * stage, 1, stage});
    const std::string why_stages =
        open(stage_memory_, {place_.tensor.rank, stage, place_.pipeline.size});
    return why.empty() ? why_stages : why;
  }

  // Every `step`th rank from `first` on, `size` of them.
  struct Members {
    int32_t first;
    int32_t step;
    int32_t size;
  };
  std::string open(std::optional<PeerMemory>& memory, const Members& members) {
    const std::vector<std::string> handles = all_.exchange(memory ? memory->handle() : "");
    if (!memory) {
      return "";
    }
    std::vector<std::string> of_group;
    for (int32_t i = 0; i < members.size; ++i) {
      of_group.push_back(handles[static_cast<size_t>(members.first + i * members.step)]);
    }
    return memory->open(of_group);
  }

  // The first reason that any rank has, the same on all.
  std::string first_of_all(const std::string& why) {
    for (const std::string& one : all_.exchange(why)) {
      if (!one.empty()) {
        return one;
      }
    }
    return "";
  }

  void warn_of_shared_gpus(int32_t ordinal) {
    const std::vector<std::string> gpus = all_.exchange(host_mark() + gpu_id(ordinal));
    const auto mine = static_cast<size_t>(place_.rank);
    const auto first = static_cast<size_t>(std::ranges::find(gpus, gpus[mine]) - gpus.begin());
    if (first != mine) {
      WR_LOG_WARN("ranks {} and {} share a GPU; it runs one of them at a time", first, mine);
    }
  }

  RankPlace place_;
  HostGroup& all_;
  AbortWord abort_;
  std::optional<PeerMemory> tensor_memory_;
  std::optional<PeerMemory> stage_memory_;
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> pipeline_;
};

}  // namespace

std::unique_ptr<CudaRanks> join_cuda_ranks(const Device& device,
                                           const RankPlace& place,
                                           HostGroup& all,
                                           GpuTransport transport) {
  return std::make_unique<Joined>(device, place, all, transport);
}

}  // namespace warprow::cuda
