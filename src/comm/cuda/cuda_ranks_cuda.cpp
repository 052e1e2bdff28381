// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/cuda_ranks.h"

#include "base/error.h"
#include "base/log.h"
#include "comm/cuda/abort_word.h"
#include "comm/cuda/nccl_communicator.h"
#include "comm/cuda/nccl_stages.h"
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
    const bool nccl = transport == GpuTransport::kNccl;
    const std::vector<std::string> hosts = all_.exchange(host_mark());
    const Group layers{"ranks of a layer",
                       place.tensor,
                       tensor_sizes(),
                       place.pipeline.rank * place.tensor.size,
                       1};
    const Group stages{"stages",
                       place.pipeline,
                       stage_sizes(place.pipeline.size),
                       place.tensor.rank,
                       place.tensor.size};
    reach(layers, nccl, hosts, tensor_memory_, tensor_);
    reach(stages, nccl, hosts, stage_memory_, pipeline_);
    if (tensor_ == nullptr) {
      tensor_ = make_nccl_communicator(place, all);
    }
    if (pipeline_ == nullptr) {
      pipeline_ = make_nccl_stages(place, all);
    }
  }

  [[nodiscard]] Communicator* tensor() const override { return tensor_.get(); }
  [[nodiscard]] Communicator* pipeline() const override { return pipeline_.get(); }

 private:
  // A group of the rank: every `step`th rank from `first` on.
  struct Group {
    const char* name;
    GroupPlace place;
    PeerSizes sizes;
    int32_t first;
    int32_t step;
    [[nodiscard]] size_t rank(int32_t i) const { return static_cast<size_t>(first + i * step); }
  };

  // Makes a communicator through each other's memory, if every group of this kind can have one. Else `comm` stays null.
  void reach(const Group& group,
             bool nccl,
             const std::vector<std::string>& hosts,
             std::optional<PeerMemory>& memory,
             std::unique_ptr<Communicator>& comm) {
    const bool alone = group.place.size == 1;
    std::string why = first_of_all(alone  ? ""
                                   : nccl ? "--rank-transport is nccl"
                                          : obstacle(group, hosts));
    if (why.empty()) {
      if (!alone) {
        memory.emplace(group.place, group.sizes);
      }
      why = first_of_all(open(group, memory));
    }
    if (why.empty() && !alone) {
      comm = make_peer_communicator(memory->group(abort_.word()));
    }
    if (!why.empty()) {
      memory.reset();
      if (place_.rank == 0) {
        WR_LOG_INFO("{} exchange with NCCL: {}", group.name, why);
      }
    }
  }

  // Why a group's ranks cannot reach each other's memory, as far as it shows before the try; "" if nothing shows.
  static std::string obstacle(const Group& group, const std::vector<std::string>& hosts) {
    if (group.place.size > kMaxPeers) {
      return fmt::format("groups of more than {} ranks", kMaxPeers);
    }
    for (int32_t i = 1; i < group.place.size; ++i) {
      if (hosts[group.rank(i)] != hosts[group.rank(0)]) {
        return "they are on several hosts";
      }
    }
    return "";
  }

  std::string open(const Group& group, std::optional<PeerMemory>& memory) {
    const std::vector<std::string> handles = all_.exchange(memory ? memory->handle() : "");
    if (!memory) {
      return "";
    }
    std::vector<std::string> of_group;
    for (int32_t i = 0; i < group.place.size; ++i) {
      of_group.push_back(handles[group.rank(i)]);
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
