// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/local_rank.h"

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/host_limits.h"
#include "device/cuda_device.h"
#include "executor/make_executor.h"
#include "executor/mp/rank_device.h"
#include "worker/device_ids.h"

#include <sched.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Pinned ranks divide the cores of the host.
void keep_own_cores(const HostShare& share) {
  const std::vector<int32_t> cores = cpu::affinity_cores();
  const size_t each = cores.size() / static_cast<size_t>(share.core_ranks);
  cpu_set_t mine;
  CPU_ZERO(&mine);
  for (size_t i = 0; i < each; ++i) {
    CPU_SET(static_cast<size_t>(cores[static_cast<size_t>(share.nth_core_rank) * each + i]), &mine);
  }
  if (each > 0) {
    ::sched_setaffinity(0, sizeof mine, &mine);
  }
}

}  // namespace

LocalRank::LocalRank(const EngineConfig& config,
                     const RankPlace& place,
                     const HostShare& share,
                     const RankComms& comms,
                     const WrapRank& wrap) {
  const int32_t ordinal =
      value_or_throw(device_ordinal(config, share.nth_gpu_rank, share.gpu_ranks));
  MachineFacts machine = this_machine(config.device, ordinal);
  machine.core_ranks = share.core_ranks;
  machine.memory_ranks = share.memory_ranks;
  value_or_throw(check_gpu(config, place, machine.why_no_cuda));
  ModelPlan plan = value_or_throw(plan_model(config, machine, {}, place));
  device_ = plan.config.device;
  value_or_throw(check_device(config, device_, machine.why_no_cuda));
  value_or_throw(check_transport(config, device_));
  RankComms joined = comms;
  if (comms.all != nullptr) {
    value_or_throw(check_rank_devices(comms.all->exchange(describe_rank_device(plan.device))));
  }
  std::unique_ptr<Device> device;
  if (device_ == "cuda") {
    device = cuda::make_cuda_device(ordinal);
    if (comms.all != nullptr) {
      cuda_ranks_ = cuda::join_cuda_ranks(
          *device,
          place,
          *comms.all,
          config.rank_transport == "nccl" ? cuda::GpuTransport::kNccl : cuda::GpuTransport::kAuto);
      joined.tensor = cuda_ranks_->tensor();
      joined.pipeline = cuda_ranks_->pipeline();
    }
  } else {
    if (plan.config.pin_threads) {
      keep_own_cores(share);
    }
    device = cpu::make_cpu_device(
        {.num_threads = plan.config.threads, .pin_threads = plan.config.pin_threads});
  }
  executor_ = make_uniproc_executor(std::move(plan), std::move(device), joined);
  if (wrap) {
    executor_ = wrap(std::move(executor_));
  }
}

}  // namespace warprow
