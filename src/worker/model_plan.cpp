// SPDX-License-Identifier: Apache-2.0
#include "worker/model_plan.h"

#include "device/cpu/cpu_device.h"
#include "device/shape_only.h"
#include "files/model_files.h"
#include "kv/kv_math.h"
#include "layers/parameter_loader.h"
#include "models/registry.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// Address space of a shape-only arena: more than any model needs, none of it mapped.
constexpr size_t kUnlimited = size_t{1} << 46;
// The share of the machine's memory an engine may plan for; the rest is the process's and the page
// cache's.
constexpr double kMemoryShare = 0.9;

// Measures weights, state and workspace by building the real things where nothing runs.
void measure(ModelPlan& plan) {
  DeviceFacts facts;
  facts.num_threads = plan.config.threads;
  const auto device = make_shape_only_device(facts);
  const auto stream = device->make_stream();
  Arena weights = device->make_arena(ArenaPurpose::kWeights, kUnlimited);
  Arena state = device->make_arena(ArenaPurpose::kState, kUnlimited);
  Arena workspace = device->make_arena(ArenaPurpose::kWorkspace, kUnlimited);
  ParameterLoader loader(*plan.checkpoint, *stream, weights, plan.load_format());
  Decoder model(plan.spec, plan.kv, plan.decoder, loader, workspace);
  const ModelRunner runner(*device, *stream, model, plan.kv, {&state, &workspace}, plan.runner);
  plan.memory.weights_bytes = static_cast<int64_t>(weights.used());
  plan.memory.state_bytes = static_cast<int64_t>(state.used());
  plan.memory.workspace_bytes = static_cast<int64_t>(workspace.used());
}

// Blocks for the bytes granted, and the longest request they allow.
Result<void> size_kv_cache(ModelPlan& plan, const EngineConfig& wishes) {
  const ResolvedConfig& config = plan.config;
  plan.kv_cache.groups = plan.kv.groups;
  const int64_t block_bytes = plan.kv_cache.block_bytes();
  const int64_t blocks = num_blocks_in(config.kv_cache_memory_bytes, plan.kv_cache);
  const auto num_groups = static_cast<int32_t>(plan.kv.groups.size());
  if (blocks < 1 + num_groups) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("kv_cache_memory_bytes is {}, below the {} bytes of {} blocks: the "
                            "null block and one of "
                            "{} tokens a group",
                            config.kv_cache_memory_bytes,
                            block_bytes * (1 + num_groups),
                            1 + num_groups,
                            config.block_size));
  }
  plan.kv_cache.num_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, 1 << 30));
  const int64_t held =
      static_cast<int64_t>(plan.kv_cache.num_blocks - 1) / num_groups * config.block_size;
  if (wishes.max_model_len > held) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("max_model_len is {}, but a KV cache of {} bytes holds {} tokens; "
                            "lower max_model_len or "
                            "raise kv_cache_memory_bytes",
                            wishes.max_model_len,
                            config.kv_cache_memory_bytes,
                            held));
  }
  const int64_t longest = std::min<int64_t>(plan.spec.max_position, held);
  plan.config.max_model_len =
      wishes.max_model_len > 0 ? wishes.max_model_len : static_cast<int32_t>(longest);
  return {};
}

Result<void> check_fit(const ModelPlan& plan, const MachineFacts& machine) {
  const MemoryPlan& memory = plan.memory;
  KvBudget budget;
  budget.requested = static_cast<int64_t>(
      std::floor(kMemoryShare * static_cast<double>(machine.usable_memory_bytes)));
  budget.weights = memory.weights_bytes;
  budget.step_peak = memory.state_bytes + memory.workspace_bytes;
  const int64_t available = available_kv_bytes(budget);
  if (memory.kv_bytes > available) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("not enough memory: {} bytes of weights, {} of state and activations "
                            "and {} of KV cache "
                            "do not fit in {} ({}% of {})",
                            budget.weights,
                            budget.step_peak,
                            memory.kv_bytes,
                            budget.requested,
                            static_cast<int>(kMemoryShare * 100),
                            machine.usable_memory_bytes));
  }
  return {};
}

void describe(ModelPlan& plan, const ModelFiles& files, const MachineFacts& machine) {
  MemoryPlan& memory = plan.memory;
  const ResolvedConfig& config = plan.config;
  memory.model = files.display_name;
  memory.architecture = plan.spec.architecture;
  memory.dtype = config.dtype;
  memory.device = config.device;
  memory.checkpoint_bytes = static_cast<int64_t>(plan.checkpoint->total_bytes());
  memory.total_bytes = machine.usable_memory_bytes;
  memory.kv_block_bytes = plan.kv_cache.block_bytes();
  memory.kv_bytes = plan.kv_cache.total_bytes();
  memory.num_blocks = plan.kv_cache.num_blocks;
  memory.num_kv_groups = static_cast<int32_t>(plan.kv.groups.size());
  memory.block_size = config.block_size;
  memory.max_model_len = config.max_model_len;
  memory.max_num_seqs = config.max_num_seqs;
  memory.max_num_batched_tokens = config.max_num_batched_tokens;
  memory.threads = config.threads;
}

void decide_options(ModelPlan& plan) {
  const ResolvedConfig& config = plan.config;
  // float32 is exact throughout; auto lets quantised weights meet int8 activations; both others
  // keep KV in bf16.
  plan.decoder.act = config.dtype == "auto" ? ActFormat::kInt8 : ActFormat::kF32;
  plan.decoder.max_num_toks = config.max_num_batched_tokens;
  const DType kv_dtype = config.dtype == "float32" ? DType::kF32 : DType::kBF16;
  const int32_t kernel_block =
      config.kernel_block_size > 0 ? config.kernel_block_size : config.block_size;
  plan.kv = plan_kv_groups(plan.spec, kv_dtype, config.block_size, kernel_block);
}

}  // namespace

MachineFacts this_machine() {
  return {DeviceKind::kCpu, cpu::usable_cores(), cpu::usable_memory_bytes()};
}

Result<ModelPlan> plan_model(const EngineConfig& wishes, const MachineFacts& machine) {
  ModelPlan plan;
  const WeightFiles weights =
      wishes.load_format == "dummy" ? WeightFiles::kNotRead : WeightFiles::kRequired;
  auto files = resolve_model(wishes.model, CachePaths::from_environment(), weights);
  if (!files) {
    return tl::unexpected(files.error());
  }
  auto checkpoint = Checkpoint::open(*files, weights);
  if (!checkpoint) {
    return tl::unexpected(checkpoint.error());
  }
  plan.checkpoint = std::make_unique<Checkpoint>(std::move(*checkpoint));
  auto spec = read_decoder_spec(*plan.checkpoint);
  if (!spec) {
    return tl::unexpected(spec.error());
  }
  plan.spec = std::move(*spec);
  auto config = resolve(wishes,
                        {machine.usable_cores,
                         machine.usable_memory_bytes,
                         machine.kind == DeviceKind::kCuda,
                         plan.spec.max_position});
  if (!config) {
    return tl::unexpected(config.error());
  }
  plan.config = std::move(*config);
  decide_options(plan);
  if (auto sized = size_kv_cache(plan, wishes); !sized) {
    return tl::unexpected(sized.error());
  }
  plan.runner.max_num_seqs = plan.config.max_num_seqs;
  plan.runner.max_num_batched_tokens = plan.config.max_num_batched_tokens;
  plan.runner.max_model_len = plan.config.max_model_len;
  plan.runner.max_steps_in_flight = plan.config.async_scheduling ? 2 : 1;
  describe(plan, *files, machine);
  try {
    measure(plan);
  } catch (const StartupError& error) {  // a tensor that is missing or has the wrong shape
    return fail(error.code(), error.what());
  }
  if (auto fits = check_fit(plan, machine); !fits) {
    return tl::unexpected(fits.error());
  }
  return plan;
}

}  // namespace warprow
