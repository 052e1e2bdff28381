// SPDX-License-Identifier: Apache-2.0
#include "worker/memory_plan.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

std::string mib(int64_t bytes) {
  return fmt::format("{:10.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string format_plan(const MemoryPlan& plan) {
  std::string out;
  const auto line = [&out](const char* name, const std::string& value) {
    out += fmt::format("{:<12}{}\n", name, value);
  };
  line("model", fmt::format("{} ({}, dtype {})", plan.model, plan.architecture, plan.dtype));
  line("device",
       fmt::format("{}, {} threads, {:.1f} GiB usable",
                   plan.device,
                   plan.threads,
                   static_cast<double>(plan.total_bytes) / (1 << 30)));
  line("weights",
       fmt::format("{}   ({:.1f} MiB in the files)",
                   mib(plan.weights_bytes),
                   static_cast<double>(plan.checkpoint_bytes) / (1 << 20)));
  line("state",
       fmt::format("{}   {} rows, {} tokens a row at most",
                   mib(plan.state_bytes),
                   plan.max_num_seqs,
                   plan.max_model_len));
  line(
      "activations",
      fmt::format(
          "{}   {} tokens a step at most", mib(plan.workspace_bytes), plan.max_num_batched_tokens));
  if (plan.graph_bytes + plan.foreign_bytes > 0) {
    line("graphs", fmt::format("{}   at most", mib(plan.graph_bytes)));
    line("driver", fmt::format("{}   kernels and libraries, about", mib(plan.foreign_bytes)));
  }
  line("kv cache",
       fmt::format("{}   {} blocks of {} tokens ({} bytes each): {} tokens",
                   mib(plan.kv_bytes),
                   plan.num_blocks,
                   plan.block_size,
                   plan.kv_block_bytes,
                   plan.kv_tokens()));
  line("total", mib(plan.planned_bytes()));
  line("concurrency",
       fmt::format("{:.1f} requests of {} tokens", plan.max_concurrency(), plan.max_model_len));
  return out;
}

std::string plan_json(const MemoryPlan& plan) {
  const nlohmann::ordered_json json = {
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
      {"graph_bytes", plan.graph_bytes},
      {"foreign_bytes", plan.foreign_bytes},
      {"kv_bytes", plan.kv_bytes},
      {"kv_block_bytes", plan.kv_block_bytes},
      {"num_blocks", plan.num_blocks},
      {"block_size", plan.block_size},
      {"kv_tokens", plan.kv_tokens()},
      {"max_model_len", plan.max_model_len},
      {"max_num_seqs", plan.max_num_seqs},
      {"max_num_batched_tokens", plan.max_num_batched_tokens},
      {"max_concurrency", plan.max_concurrency()},
      {"planned_bytes", plan.planned_bytes()},
      {"measured_bytes", plan.measured_bytes},
  };
  return json.dump();
}

}  // namespace warprow
