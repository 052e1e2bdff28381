// SPDX-License-Identifier: Apache-2.0
#include "worker/rank_plans.h"

#include "comm/rank_place.h"
#include "worker/kv_sizing.h"
#include "worker/memory_plan.h"
#include "worker/rank_terms.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// The layers of a rank's stage; empty if there is one stage.
std::string layers_text(const ModelPlan& plan) {
  const LayerRange& layers = plan.decoder.layers;
  return plan.place.pipeline.size == 1
             ? std::string()
             : fmt::format("  layers {} to {}", layers.first, layers.last - 1);
}

}  // namespace

Result<std::vector<ModelPlan>> plan_ranks(const EngineConfig& settings,
                                          const MachineFacts& machine) {
  const int32_t tensor_size = settings.tensor_parallel_size;
  const int32_t pipeline_size = settings.pipeline_parallel_size;
  std::vector<ModelPlan> plans;
  std::vector<RankTerms> offers;
  for (int32_t rank = 0; rank < tensor_size * pipeline_size; ++rank) {
    Result<ModelPlan> plan =
        plan_model(settings, machine, {}, rank_place(rank, tensor_size, pipeline_size));
    if (!plan) {
      return tl::unexpected(plan.error());
    }
    offers.push_back(offer(*plan));
    plans.push_back(*std::move(plan));
  }
  for (ModelPlan& plan : plans) {
    if (auto taken = take_terms(plan, agree(offers)); !taken) {
      return tl::unexpected(taken.error());
    }
  }
  return plans;
}

std::string format_rank_plans(std::span<const ModelPlan> ranks) {
  std::string out = format_plan(ranks.front().memory);
  if (ranks.size() == 1) {
    return out;
  }
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  out += fmt::format(
      "{:<12}{:>14} {:>14} {:>14} {:>14}\n", "MiB", "weights", "kv cache", "rest", "total");
  for (const ModelPlan& plan : ranks) {
    const MemoryPlan& memory = plan.memory;
    const int64_t total = memory.planned_bytes();
    out += fmt::format("{:<12}{:>14.1f} {:>14.1f} {:>14.1f} {:>14.1f}{}\n",
                       fmt::format("rank {}", plan.place.rank),
                       mib(memory.weights_bytes),
                       mib(memory.kv_bytes),
                       mib(total - memory.weights_bytes - memory.kv_bytes),
                       mib(total),
                       layers_text(plan));
  }
  return out;
}

std::string rank_plans_json(std::span<const ModelPlan> ranks) {
  auto json = nlohmann::ordered_json::parse(plan_json(ranks.front().memory));
  if (ranks.size() > 1) {
    for (const ModelPlan& plan : ranks) {
      const MemoryPlan& memory = plan.memory;
      json["ranks"].push_back({{"rank", plan.place.rank},
                               {"weights_bytes", memory.weights_bytes},
                               {"state_bytes", memory.state_bytes},
                               {"workspace_bytes", memory.workspace_bytes},
                               {"pinned_bytes", memory.pinned_bytes},
                               {"comm_bytes", memory.comm_bytes},
                               {"kv_bytes", memory.kv_bytes},
                               {"planned_bytes", memory.planned_bytes()}});
      if (plan.place.pipeline.size > 1) {
        json["ranks"].back()["first_layer"] = plan.decoder.layers.first;
        json["ranks"].back()["num_layers"] = plan.decoder.layers.last - plan.decoder.layers.first;
      }
    }
  }
  return json.dump();
}

}  // namespace warprow
