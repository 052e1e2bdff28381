// SPDX-License-Identifier: Apache-2.0
#include "worker/memory_plan.h"

#include "worker/device_policy.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr const char* kPlanned = "planned";
constexpr const char* kEstimated = "estimated";
constexpr const char* kMeasured = "measured";

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

KvBudget MemoryPlan::budget() const {
  return {requested_bytes,
          weights_bytes,
          foreign_bytes(),
          state_bytes + workspace_bytes,
          graph_bytes,
          pinned_is_device ? pinned_bytes : 0,
          comm_bytes};
}

void MemoryPlan::note_foreign(int64_t measured) {
  foreign_measured_bytes = std::max<int64_t>(measured, 0);
  foreign_estimated_bytes =
      std::max(kLateForeignBytes, foreign_estimated_bytes - foreign_measured_bytes);
}

std::string format_plan(const MemoryPlan& plan) {
  std::string out;
  const auto line = [&out](const char* name, const std::string& value) {
    out += fmt::format("{:<12}{}\n", name, value);
  };
  const auto figure =
      [&line](const char* name, int64_t bytes, const char* how, const std::string& what) {
        line(name, fmt::format("{:10.1f} MiB {:<9}  {}", mib(bytes), how, what));
      };
  line("model", fmt::format("{} ({}, dtype {})", plan.model, plan.architecture, plan.dtype));
  if (plan.place.world_size() > 1) {
    line("rank",
         fmt::format("{} of {}; all figures are those of one rank",
                     plan.place.rank,
                     plan.place.world_size()));
  }
  line("device",
       fmt::format("{}, {} threads, {:.1f} GiB usable",
                   plan.device,
                   plan.threads,
                   static_cast<double>(plan.total_bytes) / (1 << 30)));
  figure("weights",
         plan.weights_bytes,
         kPlanned,
         fmt::format("({:.1f} MiB in the files)", mib(plan.checkpoint_bytes)));
  figure("state",
         plan.state_bytes,
         kPlanned,
         fmt::format("{} rows, {} tokens a row at most", plan.max_num_seqs, plan.max_model_len));
  figure("activations",
         plan.workspace_bytes,
         kPlanned,
         fmt::format("{} tokens a step at most", plan.max_num_batched_tokens));
  if (plan.pinned_is_device) {
    figure("transfers", plan.pinned_bytes, kPlanned, "prompts and rings between host and device");
  }
  if (plan.comm_bytes > 0) {
    figure("ranks", plan.comm_bytes, kPlanned, "memory through which ranks exchange results");
  }
  if (plan.graph_bytes + plan.foreign_bytes() > 0) {
    figure("graphs", plan.graph_bytes, kPlanned, "at most");
    if (plan.foreign_measured_bytes > 0) {
      figure("driver", plan.foreign_measured_bytes, kMeasured, "kernels and libraries");
    }
    figure("driver",
           plan.foreign_estimated_bytes,
           kEstimated,
           plan.foreign_measured_bytes > 0 ? "kernels that load later" : "kernels and libraries");
  }
  figure("kv cache",
         plan.kv_bytes,
         kPlanned,
         fmt::format("{} blocks of {} tokens ({} bytes each, {}{}{}): {} tokens",
                     plan.num_blocks,
                     plan.block_size,
                     plan.kv_block_bytes,
                     plan.kv_dtype,
                     plan.kv_scales.empty() ? "" : ", scales ",
                     plan.kv_scales,
                     plan.kv_tokens));
  line("total", fmt::format("{:10.1f} MiB", mib(plan.planned_bytes())));
  if (!plan.pinned_is_device) {
    figure(
        "host memory", plan.pinned_bytes, kPlanned, "pinned: prompts and rings; not in the total");
  }
  line("concurrency",
       fmt::format("{:.1f} requests of {} tokens", plan.max_concurrency, plan.max_model_len));
  return out;
}

std::string plan_json(const MemoryPlan& plan) {
  nlohmann::ordered_json json = {
      {"model", plan.model},
      {"architecture", plan.architecture},
      {"dtype", plan.dtype},
      {"device", plan.device},
      {"threads", plan.threads},
      {"total_bytes", plan.total_bytes},
      {"checkpoint_bytes", plan.checkpoint_bytes},
      {"weights_bytes", plan.weights_bytes},
      {"state_bytes", plan.state_bytes},
      {"workspace_bytes", plan.workspace_bytes},
      {"pinned_bytes", plan.pinned_bytes},
      {"graph_bytes", plan.graph_bytes},
      {"foreign_bytes", plan.foreign_bytes()},
      {"foreign_estimated_bytes", plan.foreign_estimated_bytes},
      {"foreign_measured_bytes", plan.foreign_measured_bytes},
      {"kv_bytes", plan.kv_bytes},
      {"kv_dtype", plan.kv_dtype},
      {"kv_scales", plan.kv_scales},
      {"kv_block_bytes", plan.kv_block_bytes},
      {"num_blocks", plan.num_blocks},
      {"block_size", plan.block_size},
      {"kv_tokens", plan.kv_tokens},
      {"max_model_len", plan.max_model_len},
      {"max_num_seqs", plan.max_num_seqs},
      {"max_num_batched_tokens", plan.max_num_batched_tokens},
      {"max_concurrency", plan.max_concurrency},
      {"planned_bytes", plan.planned_bytes()},
      {"measured_bytes", plan.measured_bytes},
      {"figures",
       {{kPlanned,
         {"weights_bytes",
          "state_bytes",
          "workspace_bytes",
          "pinned_bytes",
          "graph_bytes",
          "kv_bytes"}},
        {kEstimated, {"foreign_estimated_bytes"}},
        {kMeasured, {"foreign_measured_bytes", "measured_bytes"}}}},
  };
  if (plan.place.world_size() > 1) {
    json["rank"] = plan.place.rank;
    json["tensor_parallel_size"] = plan.place.tensor.size;
    json["pipeline_parallel_size"] = plan.place.pipeline.size;
    json["comm_bytes"] = plan.comm_bytes;
    json["figures"][kPlanned].push_back("comm_bytes");
  }
  return json.dump();
}

}  // namespace warprow
