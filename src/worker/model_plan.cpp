// SPDX-License-Identifier: Apache-2.0
#include "worker/model_plan.h"

#include "attention/layer_backends.h"
#include "attention/native.h"
#include "base/math.h"
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/cuda/cuda_ranks.h"
#include "device/shape_only.h"
#include "files/model_files.h"
#include "models/kv_scales.h"
#include "models/layer_needs.h"
#include "models/registry.h"
#include "models/stage_split.h"
#include "models/tensor_split.h"
#include "runner/stage_link.h"
#include "worker/graph_sizes.h"
#include "worker/kv_sizing.h"
#include "worker/rank.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Address space of a shape-only arena: more than any model needs, none of it mapped.
constexpr size_t kUnlimited = size_t{1} << 46;

// Measures weights, state, workspace and pinned memory by building the real objects on a device that runs nothing.
void measure(ModelPlan& plan) {
  const auto device = make_shape_only_device(plan.device);
  const auto stream = device->make_stream();
  const Rank rank = build_rank(plan, *device, *stream, {kUnlimited, kUnlimited, kUnlimited});
  plan.memory.weights_bytes = static_cast<int64_t>(rank.weights.used());
  plan.memory.state_bytes = static_cast<int64_t>(rank.state.used());
  plan.memory.workspace_bytes = static_cast<int64_t>(rank.workspace.used());
  plan.memory.pinned_bytes = device->pinned_bytes();
  // A step with few tokens takes as long as it takes to read the weights.
  const auto drafter = static_cast<double>(rank.drafter_bytes);
  plan.draft_forward = drafter / (static_cast<double>(rank.weights.used()) - drafter);
}

DType kv_dtype_of(const ResolvedConfig& config) {
  if (config.kv_cache_dtype == "auto") {
    return config.dtype == "float32" ? DType::kF32 : DType::kBF16;
  }
  return config.kv_cache_dtype == "fp8_e5m2" ? DType::kF8E5M2 : DType::kF8E4M3;
}

void describe(ModelPlan& plan, const ModelFiles& files) {
  MemoryPlan& memory = plan.memory;
  const ResolvedConfig& config = plan.config;
  memory.model = files.display_name;
  memory.architecture = plan.spec.architecture;
  memory.dtype = config.dtype;
  memory.device = plan.device.name;
  const Checkpoint* const drafter = plan.draft == nullptr ? nullptr : plan.draft->checkpoint.get();
  memory.checkpoint_bytes = static_cast<int64_t>(plan.checkpoint->total_bytes() +
                                                 (drafter == nullptr ? 0 : drafter->total_bytes()));
  describe_kv_cache(plan);
  memory.kv_dtype = dtype_name(kv_dtype_of(config));
  if (is_f8(kv_dtype_of(config))) {
    // It was read before, and so is valid.
    for (const LayerKvScales& layer : value_or_throw(read_kv_scales(*plan.checkpoint, plan.spec))) {
      memory.kv_layers_unscaled += !layer.keys.empty() && !layer.in_checkpoint ? 1 : 0;
    }
    memory.kv_scales = config.calculate_kv_scales       ? "calculated"
                       : memory.kv_layers_unscaled == 0 ? "of the checkpoint"
                                                        : "1 where the checkpoint has none";
  }
  memory.block_size = config.block_size;
  memory.max_num_seqs = config.max_num_seqs;
  memory.max_num_batched_tokens = config.max_num_batched_tokens;
  memory.threads = config.threads;
  memory.place = plan.place;
}

// The configuration's table has validated the name.
LogprobsMode logprobs_mode_of(const std::string& name) {
  const bool processed = name.starts_with("processed");
  if (name.ends_with("logits")) {
    return processed ? LogprobsMode::kProcessedLogits : LogprobsMode::kRawLogits;
  }
  return processed ? LogprobsMode::kProcessedLogprobs : LogprobsMode::kRawLogprobs;
}

// Gives the plan its stage of all layers, and of their cache.
void divide_layers(ModelPlan& plan, const KvPlan& whole) {
  const GroupPlace& stages = plan.place.pipeline;
  plan.decoder.layers = stage_layers(plan.spec.num_layers, stages);
  if (stages.size == 1) {
    plan.kv = whole;
    plan.most_kv_layers = whole.groups.front().num_layers;
    return;
  }
  for (int32_t stage = 0; stage < stages.size; ++stage) {
    const LayerRange layers = stage_layers(plan.spec.num_layers, {stage, stages.size});
    KvPlan kv = stage_of(whole, layers.first, layers.last);
    plan.most_kv_layers = std::max(plan.most_kv_layers, kv.groups.front().num_layers);
    if (stage == stages.rank) {
      plan.kv = std::move(kv);
    }
  }
}

// An encoder's cache holds the prompts of the steps in flight, and of one whose results are being taken.
int64_t encoder_cache_bytes(const ModelPlan& plan) {
  const ResolvedConfig& config = plan.config;
  const int64_t a_step = ceil_div(config.max_num_batched_tokens, config.block_size) +
                         int64_t{config.max_num_seqs};  // blocks that are not full
  constexpr int64_t kSteps = 3;
  return KvCacheSpec{plan.kv.groups, 0}.block_bytes() * (1 + kSteps * a_step);
}

// What a head that drafts decides for the model and the run.
void use_head(const EagleSpec& head, ModelPlan& plan) {
  plan.decoder.aux_layers = head.aux_layers;
  Speculation& speculation = plan.config.speculation;
  if (speculation.default_drafts && head.speculative_tokens > 0) {
    speculation.num_drafts = std::min(head.speculative_tokens, kMaxModelDrafts);
  }
}

// A row with all of its drafts must fit into a step.
Result<void> check_whole_drafts(const ResolvedConfig& config) {
  const int32_t row_toks = 1 + config.speculation.num_drafts;
  if (!config.speculation.whole_drafts() || row_toks <= config.max_num_batched_tokens) {
    return {};
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--speculative-config: num_speculative_tokens: {} with the "
                          "rejection_sample_method ratio needs --max-num-batched-tokens of at "
                          "least {}, not {}",
                          config.speculation.num_drafts,
                          row_toks,
                          config.max_num_batched_tokens));
}

Result<void> decide_options(ModelPlan& plan, const EngineConfig& settings) {
  const ResolvedConfig& config = plan.config;
  const DevicePolicy& policy = device_policy(plan.device.kind);
  plan.decoder.linear.act = config.dtype == "auto" ? policy.act_format : ActFormat::kF32;
  plan.decoder.act_dtype = config.dtype == "float32" ? DType::kF32 : policy.act_dtype;
  plan.decoder.linear.batch_invariant = config.batch_invariant.value();
  plan.decoder.max_num_toks = config.max_num_batched_tokens;
  const DType kv_dtype = kv_dtype_of(config);
  if (is_f8(kv_dtype) && plan.spec.encoder) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("--kv-cache-dtype: {} with an encoder is not supported", dtype_name(kv_dtype)));
  }
  if (is_f8(kv_dtype) && config.dtype == "float32" && plan.device.kind == DeviceKind::kCuda) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--kv-cache-dtype: {} with --dtype float32 is not supported on a GPU",
                            dtype_name(kv_dtype)));
  }
  const int32_t kernel_block =
      config.kernel_block_size > 0 ? config.kernel_block_size : config.block_size;
  const Result<std::vector<std::string>> backends =
      layer_backends(config.attention_backend, plan.spec.num_layers);
  if (!backends) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("attention_backend: {}", backends.error().message));
  }
  KvOptions options{kv_dtype, config.block_size, kernel_block, {}};
  if (plan.device.kind == DeviceKind::kCuda && kv_dtype == DType::kBF16) {
    options.encoder_head_dims = native_attention_capabilities().head_dims;
  }
  options.layout.order = config.kv_cache_layout == "nhd" ? KvOrder::kNHD : KvOrder::kHND;
  auto draft = read_draft_plan(plan);
  if (!draft) {
    return tl::unexpected(draft.error());
  }
  plan.draft = *std::move(draft);
  if (plan.draft != nullptr && plan.draft->head) {
    use_head(*plan.draft->head, plan);
  }
  const DecoderSpec mine = rank_spec(plan.spec, plan.place.tensor);
  std::vector<const DecoderSpec*> models = {&mine};
  DecoderSpec drafter;
  if (plan.draft != nullptr) {
    drafter = rank_spec(plan.draft->spec, plan.draft->place(plan.place.tensor));
    models.push_back(&drafter);
  }
  Result<KvPlan> kv = plan_kv(models, options, *backends);
  if (!kv) {
    return tl::unexpected(kv.error());
  }
  if (config.speculation.is_on()) {
    if (auto checked = check_whole_drafts(config); !checked) {
      return tl::unexpected(checked.error());
    }
    plan.runner.max_drafts = config.speculation.num_drafts;
    plan.runner.draft_lookahead = config.speculation.lookahead();
    plan.runner.features.speculation = config.speculation;
  }
  if (plan.spec.encoder && plan.runner.max_drafts > 0) {
    return fail(ErrorCode::kUnsupported, "speculative decoding with an encoder is not supported");
  }
  const bool has_states =
      std::ranges::any_of(plan.spec.layers, [](const LayerSpec& l) { return l.has_state(); });
  if (has_states && plan.runner.max_drafts > 0) {
    const bool several_gpus = plan.device.kind != DeviceKind::kCpu && plan.place.world_size() > 1;
    if (several_gpus || plan.place.pipeline.size > 1) {
      return fail(ErrorCode::kUnsupported,
                  "speculative decoding with layers that keep a state is supported on one GPU, and "
                  "on a CPU with --pipeline-parallel-size 1, alone");
    }
    plan.decoder.max_draft_toks =
        std::min(config.max_num_batched_tokens, config.max_num_seqs * (1 + plan.runner.max_drafts));
  }
  divide_layers(plan, *kv);
  if (plan.spec.encoder && settings.kv_cache_memory_bytes == 0) {
    plan.config.kv_cache_memory_bytes = encoder_cache_bytes(plan);
  }
  plan.runner.max_num_seqs = config.max_num_seqs;
  plan.runner.max_num_batched_tokens = config.max_num_batched_tokens;
  plan.runner.max_steps_in_flight = plan.place.pipeline.size + (config.async_scheduling ? 1 : 0);
  plan.runner.batch_invariant = config.batch_invariant.value();
  plan.runner.logprobs_mode = logprobs_mode_of(config.logprobs_mode);
  plan.runner.max_logprobs = config.max_logprobs == -1 ? plan.spec.vocab_size : config.max_logprobs;
  plan.runner.features.hidden_states = config.enable_hidden_states;
  if (config.enable_lora) {
    if (plan.pooler != nullptr) {
      return fail(ErrorCode::kUnsupported, "--enable-lora: not supported with the pooling runner");
    }
    plan.decoder.deltas = true;
    plan.runner.features.lora = {config.max_loras, config.max_lora_rank, config.max_cpu_loras};
  }
  plan.runner.features.prompt_embeds = config.enable_prompt_embeds;
  plan.runner.features.block_copies = plan.device.kind == DeviceKind::kCpu;
  if (plan.draft != nullptr) {
    finish_draft_plan(*plan.draft, plan);
  }
  const int32_t draft_layers =
      plan.draft == nullptr ? 0 : plan.runner.max_drafts * plan.draft->spec.num_layers;
  Result<GraphOptions> graphs = decide_graphs(config, plan.spec.num_layers, draft_layers);
  if (!graphs) {
    return tl::unexpected(graphs.error());
  }
  plan.runner.graphs = *std::move(graphs);
  return {};
}

// Sets what a pooling model yields in place of text, and how long its prompts may be.
Result<void> decide_pooling(ModelPlan& plan,
                            const EngineConfig& settings,
                            const ModelFiles& files) {
  const std::string dir = files.kind == ModelFiles::Kind::kHfDir ? files.path : std::string();
  auto pooler = read_pooler(*plan.checkpoint, dir, plan.spec, settings);
  if (!pooler || *pooler == nullptr) {
    return pooler.map([](const std::unique_ptr<Pooler>&) {});
  }
  if (settings.enable_prompt_embeds) {
    return fail(ErrorCode::kUnsupported,
                "--enable-prompt-embeds: the pooling runner takes no prompt_embeds");
  }
  if (settings.pipeline_parallel_size > 1) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--pipeline-parallel-size: {} with the pooling runner is not supported",
                            settings.pipeline_parallel_size));
  }
  const auto length = read_max_seq_length(dir);
  if (!length) {
    return tl::unexpected(length.error());
  }
  plan.spec.max_position =
      std::min(plan.spec.max_position, length->value_or(plan.spec.max_position));
  plan.pooler = *std::move(pooler);
  plan.runner.features.pooler = plan.pooler.get();
  return {};
}

// What a CPU rank may use of the machine.
MachineFacts part_of(const MachineFacts& machine, const RankPlace& place) {
  const auto or_all = [&](int32_t ranks) { return ranks > 0 ? ranks : place.world_size(); };
  MachineFacts part = machine;
  part.usable_cores = std::max(1, machine.usable_cores / or_all(machine.core_ranks));
  part.usable_memory_bytes /= or_all(machine.memory_ranks);
  return part;
}

// Whether the results of a step have room between the stages of a pipeline.
Result<void> check_results(const ModelPlan& plan) {
  const int64_t bytes = StageLink::result_bytes(plan.config.max_num_seqs, plan.runner.max_drafts);
  if (plan.place.pipeline.size > 1 && std::cmp_greater(bytes, kMostResultBytes)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--max-num-seqs: the results of {} rows with {} drafts each are {} "
                            "bytes; stages of a pipeline exchange at most {}",
                            plan.config.max_num_seqs,
                            plan.runner.max_drafts,
                            bytes,
                            kMostResultBytes));
  }
  return {};
}

// A CPU rank's part of the memory through which ranks exchange.
int64_t comm_bytes(const RankPlace& place) {
  size_t bytes = stage_incoming_bytes(place.pipeline);
  if (place.tensor.size > 1) {
    bytes += shared_memory_communicator_bytes(place.tensor.size) /
             static_cast<size_t>(place.tensor.size);
  }
  return static_cast<int64_t>(bytes);
}

// Sets what the device grants, and what is reserved before anything is counted.
void grant_memory(ModelPlan& plan) {
  const DevicePolicy& policy = device_policy(plan.device.kind);
  const double share =
      policy.memory_share > 0 ? policy.memory_share : plan.config.gpu_memory_utilization;
  MemoryPlan& memory = plan.memory;
  memory.total_bytes = plan.device.total_bytes;
  memory.requested_bytes =
      static_cast<int64_t>(std::floor(share * static_cast<double>(memory.total_bytes)));
  memory.pinned_is_device = !plan.device.own_memory;
  memory.foreign_estimated_bytes = policy.foreign_bytes;
  memory.comm_bytes = plan.device.kind == DeviceKind::kCpu ? comm_bytes(plan.place)
                                                           : cuda::cuda_comm_bytes(plan.place);
  memory.graph_bytes = policy.graphs_take_memory ? plan.runner.graphs.reserved_bytes : 0;
}

}  // namespace

Result<void> check_parallel_sizes(const EngineConfig& settings) {
  const int32_t num_ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size;
  if (num_ranks > kMaxRanks) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--pipeline-parallel-size: {} stages of {} ranks each are {} ranks; at "
                            "most {} are supported",
                            settings.pipeline_parallel_size,
                            settings.tensor_parallel_size,
                            num_ranks,
                            kMaxRanks));
  }
  return {};
}

Result<ModelPlan> plan_model(const EngineConfig& settings,
                             const MachineFacts& machine,
                             const RunnerOptions& runner,
                             const std::optional<RankPlace>& place) {
  ModelPlan plan;
  if (auto sizes = check_parallel_sizes(settings); !sizes) {
    return tl::unexpected(sizes.error());
  }
  plan.place =
      place.value_or(rank_place(0, settings.tensor_parallel_size, settings.pipeline_parallel_size));
  plan.runner = runner;
  plan.pages_are_given = runner.token_pages.num_pages > 0;
  const WeightFiles weights =
      settings.load_format == "dummy" ? WeightFiles::kNotRead : WeightFiles::kRequired;
  auto files = resolve_model(settings.model, CachePaths::from_environment(), weights);
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
  if (auto decided = decide_pooling(plan, settings, *files); !decided) {
    return tl::unexpected(decided.error());
  }
  if (settings.max_model_len > 0) {
    set_longest_sequence(plan.spec, settings.max_model_len);
  }
  const MachineFacts mine = part_of(machine, plan.place);
  HostFacts host = host_facts(mine);
  host.model_max_len = plan.spec.max_position;
  EngineConfig wanted = settings;
  wanted.enable_chunked_prefill = settings.enable_chunked_prefill && !plan.spec.encoder;
  auto config = resolve(wanted, host);
  if (!config) {
    return tl::unexpected(config.error());
  }
  plan.config = std::move(*config);
  plan.device = planned_device(plan.config, mine);
  if (auto divides = check_tensor_split(plan.spec, plan.place.tensor.size, plan.device.kind);
      !divides) {
    return tl::unexpected(divides.error());
  }
  if (auto divides = check_stage_split(plan.spec, plan.place.pipeline.size); !divides) {
    return tl::unexpected(divides.error());
  }
  if (auto decided = decide_options(plan, settings); !decided) {
    return tl::unexpected(decided.error());
  }
  if (auto fits = check_results(plan); !fits) {
    return tl::unexpected(fits.error());
  }
  grant_memory(plan);
  try {
    if (auto sized = size_memory(plan, settings.max_model_len, measure); !sized) {
      return tl::unexpected(sized.error());
    }
  } catch (const StartupError& error) {  // a tensor that is missing or has the wrong shape
    return fail(error.code(), error.what());
  }
  describe(plan, *files);
  if (auto fits = check_fit(plan); !fits) {
    return tl::unexpected(fits.error());
  }
  return plan;
}

}  // namespace warprow
