// SPDX-License-Identifier: Apache-2.0
#include "worker/model_plan.h"

#include "attention/layer_backends.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda_device.h"
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

// What our kernels and the driver's libraries take of a GPU besides what is planned. On an H200 5 to
// 11 MB by the end of start-up, and a few more when the first requests use further kernels; the
// context is there before anything is planned.
constexpr int64_t kGpuForeignBytes = int64_t{32} << 20;
// What captures take there: 6 to 8 MiB for the 29 pieces of 28 layers, below 0.5 MiB for the same
// layers whole, less for sampling.
constexpr int64_t kGraphBytes = int64_t{256} << 10;     // of each graph
constexpr int64_t kGraphLayerBytes = int64_t{8} << 10;  // and of each layer in it
constexpr int64_t kSampleGraphsPerSize = 2;             // sets of sampling rules used at one size

bool on_gpu(const ModelPlan& plan) { return plan.config.device == "cuda"; }

DeviceFacts device_facts(const ModelPlan& plan, const MachineFacts& machine) {
  if (on_gpu(plan)) {
    return machine.gpu;
  }
  DeviceFacts facts;
  facts.num_threads = plan.config.threads;
  return facts;
}

// Measures weights, state and workspace by building the real things where nothing runs.
void measure(ModelPlan& plan, const MachineFacts& machine) {
  const auto device = make_shape_only_device(device_facts(plan, machine));
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

// The device's memory, and the part of it that the engine may take.
int64_t total_bytes(const ModelPlan& plan, const MachineFacts& machine) {
  return on_gpu(plan) ? machine.gpu.total_bytes : machine.usable_memory_bytes;
}
KvBudget budget_of(const ModelPlan& plan, const MachineFacts& machine) {
  const double share = on_gpu(plan) ? plan.config.gpu_memory_utilization : kMemoryShare;
  KvBudget budget;
  budget.requested =
      static_cast<int64_t>(std::floor(share * static_cast<double>(total_bytes(plan, machine))));
  budget.weights = plan.memory.weights_bytes;
  budget.foreign = plan.memory.foreign_bytes;
  budget.step_peak = plan.memory.state_bytes + plan.memory.workspace_bytes;
  budget.graphs = plan.memory.graph_bytes;
  return budget;
}

Result<void> check_fit(const ModelPlan& plan, const MachineFacts& machine) {
  const KvBudget budget = budget_of(plan, machine);
  if (on_gpu(plan) && budget.requested > machine.gpu.free_bytes) {
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("gpu_memory_utilization {} of {} bytes is {}, but only {} are free",
                            plan.config.gpu_memory_utilization,
                            machine.gpu.total_bytes,
                            budget.requested,
                            machine.gpu.free_bytes));
  }
  if (plan.memory.kv_bytes > available_kv_bytes(budget)) {
    return fail(
        ErrorCode::kOutOfMemory,
        fmt::format("not enough memory: {} bytes of weights, {} of state and activations, "
                    "{} of graphs and libraries and {} of KV cache do not fit in {} ({:.0f}% "
                    "of {})",
                    budget.weights,
                    budget.step_peak,
                    budget.graphs + budget.foreign,
                    plan.memory.kv_bytes,
                    budget.requested,
                    100.0 * static_cast<double>(budget.requested) /
                        static_cast<double>(total_bytes(plan, machine)),
                    total_bytes(plan, machine)));
  }
  return {};
}

void describe(ModelPlan& plan, const ModelFiles& files, const MachineFacts& machine) {
  MemoryPlan& memory = plan.memory;
  const ResolvedConfig& config = plan.config;
  memory.model = files.display_name;
  memory.architecture = plan.spec.architecture;
  memory.dtype = config.dtype;
  memory.device = on_gpu(plan) ? machine.gpu.name : config.device;
  memory.checkpoint_bytes = static_cast<int64_t>(plan.checkpoint->total_bytes());
  memory.total_bytes = total_bytes(plan, machine);
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

// The sizes to capture: the user's, which are checked even where nothing is captured.
Result<std::vector<int32_t>> capture_sizes(const ResolvedConfig& config) {
  if (config.cudagraph_capture_sizes == "auto") {
    return default_capture_sizes(config.max_num_seqs, config.max_num_batched_tokens);
  }
  Result<std::vector<int32_t>> sizes = parse_capture_sizes(config.cudagraph_capture_sizes);
  if (!sizes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--cudagraph-capture-sizes: {}", sizes.error().message));
  }
  if (sizes->back() > config.max_num_batched_tokens) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--cudagraph-capture-sizes: {} is above --max-num-batched-tokens {}",
                            sizes->back(),
                            config.max_num_batched_tokens));
  }
  return sizes;
}

// Room for every size captured in each way that the wish allows.
void reserve_graphs(GraphOptions& graphs, int64_t num_layers) {
  const bool pieces = graphs.wish != GraphWish::kFullDecodeOnly && graphs.wish != GraphWish::kNone;
  const int64_t whole_bytes = kGraphBytes + num_layers * kGraphLayerBytes;
  const int64_t pieces_bytes = pieces ? (num_layers + 1) * kGraphBytes : 0;
  const int64_t per_size = whole_bytes + pieces_bytes + kSampleGraphsPerSize * kGraphBytes;
  graphs.capture_bytes = std::max(whole_bytes, pieces_bytes);
  graphs.reserved_bytes = static_cast<int64_t>(graphs.sizes.size()) * per_size;
}

Result<void> decide_graphs(ModelPlan& plan) {
  const ResolvedConfig& config = plan.config;
  GraphOptions& graphs = plan.runner.graphs;
  const Result<GraphWish> wish = parse_graph_wish(config.cudagraph_mode);
  Result<std::vector<int32_t>> sizes = capture_sizes(config);
  if (!wish || !sizes) {
    return tl::unexpected(!wish ? wish.error() : sizes.error());
  }
  graphs.wish = *wish;
  if (graphs.wish == GraphWish::kNone) {
    return {};
  }
  graphs.sizes = *std::move(sizes);
  reserve_graphs(graphs, plan.spec.num_layers);
  return {};
}

// The configuration's table has checked the name.
LogprobsMode logprobs_mode_of(const std::string& name) {
  const bool processed = name.starts_with("processed");
  if (name.ends_with("logits")) {
    return processed ? LogprobsMode::kProcessedLogits : LogprobsMode::kRawLogits;
  }
  return processed ? LogprobsMode::kProcessedLogprobs : LogprobsMode::kRawLogprobs;
}

Result<void> decide_options(ModelPlan& plan) {
  const ResolvedConfig& config = plan.config;
  // On a CPU float32 is exact throughout; auto lets quantised weights meet int8 activations and bf16
  // ones bf16; both others keep KV in bf16.
  plan.decoder.linear.act =
      config.dtype == "auto" && !on_gpu(plan) ? ActFormat::kRounded : ActFormat::kF32;
  plan.decoder.act_dtype = on_gpu(plan) ? DType::kBF16 : DType::kF32;
  plan.decoder.linear.batch_invariant = config.batch_invariant;
  plan.decoder.max_num_toks = config.max_num_batched_tokens;
  const DType kv_dtype = config.dtype == "float32" ? DType::kF32 : DType::kBF16;
  const int32_t kernel_block =
      config.kernel_block_size > 0 ? config.kernel_block_size : config.block_size;
  const Result<std::vector<std::string>> backends =
      layer_backends(config.attention_backend, plan.spec.num_layers);
  if (!backends) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("attention_backend: {}", backends.error().message));
  }
  const KvLayout layout = config.kv_cache_layout == "nhd" ? KvLayout::kNHD : KvLayout::kHND;
  plan.kv =
      plan_kv_groups(plan.spec, {kv_dtype, config.block_size, kernel_block, layout}, *backends);
  plan.runner.max_num_seqs = config.max_num_seqs;
  plan.runner.max_num_batched_tokens = config.max_num_batched_tokens;
  plan.runner.max_steps_in_flight = config.async_scheduling ? 2 : 1;
  plan.runner.batch_invariant = config.batch_invariant;
  plan.runner.logprobs_mode = logprobs_mode_of(config.logprobs_mode);
  plan.runner.features.hidden_states = config.enable_hidden_states;
  if (auto graphs = decide_graphs(plan); !graphs) {
    return graphs;
  }
  if (on_gpu(plan)) {
    plan.memory.foreign_bytes = kGpuForeignBytes;
    plan.memory.graph_bytes = plan.runner.graphs.reserved_bytes;
  }
  return {};
}

// The KV cache and the longest request. On a GPU the cache takes what everything else leaves, and
// state grows with the longest request; so that one is fixed first and cut when the cache is small.
Result<void> size_memory(ModelPlan& plan, const EngineConfig& wishes, const MachineFacts& machine) {
  if (!on_gpu(plan)) {
    if (auto sized = size_kv_cache(plan, wishes); !sized) {
      return sized;
    }
    plan.runner.max_model_len = plan.config.max_model_len;
    measure(plan, machine);
    return {};
  }
  const bool given = plan.config.kv_cache_memory_bytes > 0;
  plan.runner.max_model_len =
      wishes.max_model_len > 0 ? wishes.max_model_len : plan.spec.max_position;
  for (;;) {
    measure(plan, machine);
    if (!given) {
      const int64_t available = available_kv_bytes(budget_of(plan, machine));
      plan.kv_cache.groups = plan.kv.groups;
      plan.memory.kv_bytes =
          plan.kv_cache.block_bytes() * (1 + static_cast<int64_t>(plan.kv.groups.size()));
      if (available < plan.memory.kv_bytes) {
        return check_fit(plan, machine);
      }
      plan.config.kv_cache_memory_bytes = available;
    }
    if (auto sized = size_kv_cache(plan, wishes); !sized) {
      return sized;
    }
    if (plan.config.max_model_len >= plan.runner.max_model_len) {
      return {};
    }
    plan.runner.max_model_len = plan.config.max_model_len;
  }
}

}  // namespace

MachineFacts this_machine(const std::string& device) {
  MachineFacts machine{cpu::usable_cores(), cpu::usable_memory_bytes(), {}, {}};
  if (device == "cpu") {
    return machine;
  }
  if (const DeviceFacts* known = cuda::known_device(device); known != nullptr) {
    machine.gpu = *known;
    return machine;
  }
  cuda::Availability found = cuda::find_device();
  machine.gpu = std::move(found.facts);
  machine.why_no_cuda = std::move(found.why_not);
  return machine;
}

HostFacts host_facts(const MachineFacts& machine) {
  HostFacts facts;
  facts.usable_cores = machine.usable_cores;
  facts.usable_memory_bytes = machine.usable_memory_bytes;
  facts.has_cuda = machine.gpu.kind == DeviceKind::kCuda;
  facts.why_no_cuda = machine.why_no_cuda;
  return facts;
}

Result<ModelPlan> plan_model(const EngineConfig& wishes,
                             const MachineFacts& machine,
                             const RunnerOptions& runner) {
  ModelPlan plan;
  plan.runner = runner;
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
  HostFacts host = host_facts(machine);
  host.model_max_len = plan.spec.max_position;
  auto config = resolve(wishes, host);
  if (!config) {
    return tl::unexpected(config.error());
  }
  plan.config = std::move(*config);
  if (auto decided = decide_options(plan); !decided) {
    return tl::unexpected(decided.error());
  }
  try {
    if (auto sized = size_memory(plan, wishes, machine); !sized) {
      return tl::unexpected(sized.error());
    }
  } catch (const StartupError& error) {  // a tensor that is missing or has the wrong shape
    return fail(error.code(), error.what());
  }
  describe(plan, *files, machine);
  if (auto fits = check_fit(plan, machine); !fits) {
    return tl::unexpected(fits.error());
  }
  return plan;
}

}  // namespace warprow
