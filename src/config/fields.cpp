// SPDX-License-Identifier: Apache-2.0
#include "config/fields.h"

#include "config/parse_size.h"
#include "config/speculation.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxRanks = 64;
constexpr int64_t kMostLoras = 64;
constexpr int64_t kMostLoraRank = 512;
constexpr int64_t kMostCpuLoras = 4096;
constexpr int64_t kMostDrafts = 16;
static_assert(kMostDrafts == kMaxDrafts);  // the table in the docs is made from this file

constexpr Field kFields[] = {
    {.name = "model",
     .member = &EngineConfig::model,
     .group = "Model",
     .help = "a .gguf file, a Hugging Face directory, an alias (smollm2), or "
             "org/name[@revision][:QUANT] on the Hugging Face Hub",
     .common = true},
    {.name = "dtype",
     .member = &EngineConfig::dtype,
     .group = "Model",
     .help = "auto: bfloat16, and on a CPU int8 products for quantised weights; float32: exact; "
             "slow on a GPU",
     .common = true,
     .choices = "auto|float32|bfloat16"},
    {.name = "load-format",
     .member = &EngineConfig::load_format,
     .group = "Model",
     .help = "dummy: random weights, for benchmarks; only config.json is read",
     .choices = "auto|dummy"},
    {.name = "quantization",
     .member = &EngineConfig::quantization,
     .group = "Model",
     .help = "weights of linear layers that are not quantised become 8-bit floats (fp8) or 8-bit "
             "integers (int8; on a CPU the head too) while they are loaded; none: as the model's "
             "files have them",
     .alias = "q",
     .choices = "none|fp8|int8"},
    {.name = "fp8-activations",
     .member = &EngineConfig::fp8_activations,
     .group = "Model",
     .help = "auto: products with 8-bit float weights round their inputs to 8 bits too, where the "
             "model's files or --quantization fp8 say so (Hopper GPUs; a CPU with --dtype "
             "float32); off: never",
     .choices = "auto|off"},
    {.name = "runner",
     .member = &EngineConfig::runner,
     .group = "Model",
     .help = "generate: text; pooling: embeddings, scores or classes in place of text; auto: what "
             "the model's files say",
     .choices = "auto|generate|pooling"},
    {.name = "convert",
     .member = &EngineConfig::convert,
     .group = "Model",
     .help =
         "what the pooling runner makes of a model that generates: embed: embeddings; classify: "
         "the score of a reranker that answers yes or no; auto: what the model's files say, "
         "else embed",
     .choices = "auto|embed|classify"},
    {.name = "max-model-len",
     .member = &EngineConfig::max_model_len,
     .group = "Model",
     .help = "maximum length of prompt and output together, in tokens; auto: the model's maximum, "
             "reduced to fit the KV cache",
     .common = true,
     .max = kMaxTokens,
     .auto_value = 0},
    {.name = "device",
     .member = &EngineConfig::device,
     .group = "Device",
     .help = "device to run on; auto: a GPU if there is one; h200: only for `plan`",
     .common = true,
     .choices = "auto|cpu|cuda|h200"},
    {.name = "tensor-parallel-size",
     .member = &EngineConfig::tensor_parallel_size,
     .group = "Parallelism",
     .help = "number of devices, or CPU processes, that divide each layer between them",
     .alias = "tp",
     .min = 1,
     .max = kMaxRanks},
    {.name = "pipeline-parallel-size",
     .member = &EngineConfig::pipeline_parallel_size,
     .group = "Parallelism",
     .help = "number of parts that the list of layers is divided into, each on devices of its own",
     .alias = "pp",
     .min = 1,
     .max = kMaxRanks},
    {.name = "distributed-executor-backend",
     .member = &EngineConfig::distributed_executor_backend,
     .group = "Parallelism",
     .help = "how ranks are run; uni: in this process; mp: a process for each; external_launcher: "
             "mpirun, srun or torchrun started this command once for each rank; auto: mp if there "
             "are several",
     .choices = "auto|uni|mp|external_launcher"},
    {.name = "worker-binary",
     .member = &EngineConfig::worker_binary,
     .group = "Parallelism",
     .help = "program that mp starts for each rank, as `PROGRAM rank ...`; empty: this one"},
    {.name = "stall-timeout",
     .member = &EngineConfig::stall_timeout,
     .group = "Parallelism",
     .help = "seconds in one phase of a step after which /health says that the engine is stuck; a "
             "rank that needs longer for a step ends the engine; auto: 4, and for ranks 60 on a "
             "GPU and 600 on a CPU",
     .min = 1,
     .max = 86400,
     .auto_value = 0},
    {.name = "join-timeout",
     .member = &EngineConfig::join_timeout,
     .group = "Parallelism",
     .help = "seconds in which all ranks that a launcher starts must have found rank 0",
     .min = 1,
     .max = 86400},
    {.name = "rank-transport",
     .member = &EngineConfig::rank_transport,
     .group = "Parallelism",
     .help =
         "how ranks exchange data; auto: CPU ranks through shared memory on one host, else over "
         "TCP; GPUs through each other's memory on one host, else with NCCL; tcp: for CPU ranks "
         "that a launcher started; nccl: for GPUs",
     .choices = "auto|tcp|nccl"},
    {.name = "device-ids",
     .member = &EngineConfig::device_ids,
     .group = "Device",
     .help = "GPUs of this host's ranks, as indices into CUDA_VISIBLE_DEVICES, such as 0,2; empty: "
             "the first ones"},
    {.name = "threads",
     .member = &EngineConfig::threads,
     .group = "Device",
     .help = "number of CPU threads; auto: the cores available to this process",
     .common = true,
     .max = 1024,
     .auto_value = 0},
    {.name = "pin-threads",
     .member = &EngineConfig::pin_threads,
     .group = "Device",
     .help = "pin each CPU thread to one core, in the order of the affinity mask"},
    {.name = "kv-cache-memory-bytes",
     .member = &EngineConfig::kv_cache_memory_bytes,
     .group = "KV cache",
     .help = "memory for the KV cache; auto: on a CPU 2 GiB or a quarter of the memory, whichever "
             "is less; on a GPU what --gpu-memory-utilization leaves",
     .common = true,
     .is_bytes = true,
     .max = int64_t{1} << 50,
     .auto_value = 0},
    {.name = "kv-cache-dtype",
     .member = &EngineConfig::kv_cache_dtype,
     .group = "KV cache",
     .help = "type of cached keys and values; auto: bfloat16, or float32 with --dtype float32; "
             "fp8, fp8_e4m3 and fp8_e5m2: 8-bit floats with the checkpoint's scales, in half the "
             "memory",
     .choices = "auto|fp8|fp8_e4m3|fp8_e5m2"},
    {.name = "calculate-kv-scales",
     .member = &EngineConfig::calculate_kv_scales,
     .group = "KV cache",
     .help = "calculate the scales of an 8-bit cache, one for each KV head, from a step of fixed "
             "tokens at start, in place of the checkpoint's"},
    {.name = "gpu-memory-utilization",
     .member = &EngineConfig::gpu_memory_utilization,
     .group = "KV cache",
     .help = "fraction of GPU memory for weights, activations, CUDA graphs and KV cache",
     .max = 1},
    {.name = "block-size",
     .member = &EngineConfig::block_size,
     .group = "KV cache",
     .help = "tokens per KV cache block; a multiple of 16",
     .min = 16,
     .max = 1024,
     .multiple_of = 16},
    {.name = "kernel-block-size",
     .member = &EngineConfig::kernel_block_size,
     .group = "KV cache",
     .help = "tokens per block as the attention kernels see it; a multiple of 16 that divides "
             "--block-size; auto: --block-size",
     .min = 16,
     .max = 1024,
     .multiple_of = 16,
     .auto_value = 0},
    {.name = "kv-cache-layout",
     .member = &EngineConfig::kv_cache_layout,
     .group = "KV cache",
     .help = "order of dimensions in a block: hnd is [head, token, dim], nhd is [token, head, dim]",
     .choices = "hnd|nhd"},
    {.name = "enable-prefix-caching",
     .member = &EngineConfig::enable_prefix_caching,
     .group = "KV cache",
     .help = "reuse KV cache blocks of requests that share a prefix"},
    {.name = "max-num-seqs",
     .member = &EngineConfig::max_num_seqs,
     .group = "Scheduler",
     .help = "maximum number of requests running at once; auto: 64 on a CPU, 1024 on a GPU",
     .common = true,
     .max = 65536,
     .auto_value = 0},
    {.name = "max-num-batched-tokens",
     .member = &EngineConfig::max_num_batched_tokens,
     .group = "Scheduler",
     .help =
         "maximum number of tokens per step; auto: 512 on a CPU, 8192 on a GPU, 32768 in offline "
         "runs on a GPU of 64 GiB or more",
     .max = kMaxTokens,
     .auto_value = 0},
    {.name = "target-itl-ms",
     .member = &EngineConfig::target_itl_ms,
     .group = "Scheduler",
     .help =
         "target inter-token latency of running requests in milliseconds: limits the prompt "
         "tokens of a step; 0: no limit; auto: 15 on a CPU, no limit on a GPU or in offline runs",
     .max = 60000,
     .auto_value = kAutoTargetItl},
    {.name = "scheduling-policy",
     .member = &EngineConfig::scheduling_policy,
     .group = "Scheduler",
     .help =
         "fcfs: first come, first served; priority: requests with a lower `priority` value first",
     .choices = "fcfs|priority"},
    {.name = "long-prefill-token-threshold",
     .member = &EngineConfig::long_prefill_token_threshold,
     .group = "Scheduler",
     .help =
         "maximum number of tokens per step for a prompt with more tokens left, while other "
         "requests run or wait; 0: no limit; auto: 1/8 of a step, for prompts longer than 8 steps",
     .max = kMaxTokens,
     .auto_value = kAutoPrefillThreshold},
    {.name = "enable-chunked-prefill",
     .member = &EngineConfig::enable_chunked_prefill,
     .group = "Scheduler",
     .help = "split long prompts over several steps"},
    {.name = "async-scheduling",
     .member = &EngineConfig::async_scheduling,
     .group = "Scheduler",
     .help = "schedule the next step while the current one runs"},
    {.name = "speculative-config",
     .member = &EngineConfig::speculative_config,
     .group = "Scheduler",
     .help = "draft tokens and verify several in one step, with the same answers: a JSON object "
             "with vLLM's keys method (ngram, suffix, draft_model, eagle, eagle3, mtp), "
             "num_speculative_tokens, model, prompt_lookup_min, prompt_lookup_max, "
             "suffix_decoding_* and rejection_sample_method (match; ratio: answers of the same "
             "distribution); empty: off"},
    {.name = "spec-method",
     .member = &EngineConfig::spec_method,
     .group = "Scheduler",
     .help = "how tokens are drafted, in place of --speculative-config; ngram: the tokens after an "
             "earlier occurrence of the last ones; suffix: those that followed most often, also in "
             "other answers; mtp: by the checkpoint's own MTP layers; empty: off"},
    {.name = "num-speculative-tokens",
     .member = &EngineConfig::num_speculative_tokens,
     .group = "Scheduler",
     .help = "maximum number of draft tokens of a request in a step; auto: 4, with suffix 16",
     .max = kMostDrafts,
     .auto_value = 0},
    {.name = "seed",
     .member = &EngineConfig::seed,
     .group = "Scheduler",
     .help = "base seed for requests without a seed of their own"},
    {.name = "logprobs-mode",
     .member = &EngineConfig::logprobs_mode,
     .group = "Answers",
     .help = "what logprobs report: raw is before, processed after temperature and other sampling "
             "parameters; as log probabilities or logits",
     .choices = "raw_logprobs|raw_logits|processed_logprobs|processed_logits"},
    {.name = "max-logprobs",
     .member = &EngineConfig::max_logprobs,
     .group = "Answers",
     .help = "maximum number of the likeliest tokens that a request may ask for with logprobs; -1: "
             "the whole vocabulary, on a CPU; more than 128 take memory for each row",
     .min = -1,
     .max = kMaxTokens},
    {.name = "enable-hidden-states",
     .member = &EngineConfig::enable_hidden_states,
     .group = "Answers",
     .help = "allow requests to return hidden states; takes host memory"},
    {.name = "enable-prompt-embeds",
     .member = &EngineConfig::enable_prompt_embeds,
     .group = "Answers",
     .help =
         "allow prompts with embeddings in place of token ids (prompt_embeds); takes memory for "
         "the vectors of a step"},
    {.name = "enable-lora",
     .member = &EngineConfig::enable_lora,
     .group = "LoRA",
     .help = "requests may name LoRA adapters; takes memory for them"},
    {.name = "lora-modules",
     .member = &EngineConfig::lora_modules,
     .group = "LoRA",
     .help = "adapters to load at start, as NAME=DIRECTORY,...: directories that PEFT saved; needs "
             "--enable-lora"},
    {.name = "max-loras",
     .member = &EngineConfig::max_loras,
     .group = "LoRA",
     .help = "maximum number of adapters that the requests of a batch may have; each takes device "
             "memory",
     .min = 1,
     .max = kMostLoras},
    {.name = "max-lora-rank",
     .member = &EngineConfig::max_lora_rank,
     .group = "LoRA",
     .help = "maximum rank of an adapter; sizes the memory, smaller ranks cost less time",
     .min = 1,
     .max = kMostLoraRank},
    {.name = "max-cpu-loras",
     .member = &EngineConfig::max_cpu_loras,
     .group = "LoRA",
     .help = "maximum number of loaded adapters, each of which takes pinned host memory; auto: "
             "--max-loras",
     .min = 1,
     .max = kMostCpuLoras,
     .auto_value = 0},
    {.name = "attention-backend",
     .member = &EngineConfig::attention_backend,
     .group = "Kernels",
     .help = "attention backend; auto: the fastest that supports the model; or per layer, such as "
             "native:0-3,flashinfer"},
    {.name = "batch-invariant",
     .member = &EngineConfig::batch_invariant,
     .group = "Kernels",
     .help = "on a GPU: make the bits of an output independent of batch size and other requests; "
             "auto: on Hopper with the attention backend native; always true on a CPU"},
    {.name = "enforce-eager",
     .member = &EngineConfig::enforce_eager,
     .group = "Kernels",
     .help = "never use CUDA graphs"},
    {.name = "cudagraph-mode",
     .member = &EngineConfig::cudagraph_mode,
     .group = "Kernels",
     .help = "which steps use CUDA graphs; auto: full_and_piecewise on a GPU, none on a CPU",
     .choices = "auto|none|piecewise|full|full_decode_only|full_and_piecewise"},
    {.name = "cudagraph-capture-sizes",
     .member = &EngineConfig::cudagraph_capture_sizes,
     .group = "Kernels",
     .help = "batch sizes in tokens to capture CUDA graphs for, ascending, such as 1,2,4,8; auto: "
             "up to 512"},
    {.name = "log-level",
     .member = &EngineConfig::log_level,
     .group = "Logging",
     .help = "least severe level that is logged to stderr",
     .choices = "trace|debug|info|warning|error|off"},
    {.name = "log-format",
     .member = &EngineConfig::log_format,
     .group = "Logging",
     .help = "json: one JSON object per line",
     .choices = "text|json"},
};

tl::unexpected<Error> bad(std::string_view where, std::string_view what) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", where, what));
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return out;
}

bool is_choice(std::string_view choices, std::string_view word) {
  while (!choices.empty()) {
    const size_t end = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, end) == word) {
      return true;
    }
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return false;
}

// Above 0, at most 1.
Result<double> parse_share(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0.0 && value <= 1.0)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is not a number above 0 and at most 1", text));
  }
  return value;
}

Result<int64_t> parse_number(const Field& field, int64_t type_max, std::string_view text) {
  if (field.auto_value && text == "auto") {
    return *field.auto_value;
  }
  if (field.min == -1 && text == "-1") {
    return -1;
  }
  Result<int64_t> value = parse_size(text);
  if (!value || (field.auto_value == 0 && *value == 0)) {
    return value;
  }
  const int64_t max = std::min(field.max, type_max);
  if (*value < field.min) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is below the least allowed, {}", text, field.min));
  }
  if (*value > max) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is above the most allowed, {}", text, max));
  }
  if (*value % field.multiple_of != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is not a multiple of {}", text, field.multiple_of));
  }
  return value;
}

}  // namespace

Result<bool> parse_switch(std::string_view text) {
  const std::string word = lower(text);
  if (is_choice("true|1|on|yes|enabled", word)) {
    return true;
  }
  if (is_choice("false|0|off|no|disabled", word)) {
    return false;
  }
  return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is neither true nor false", text));
}

void for_each_field(const std::function<void(const Field&)>& visit) {
  for (const Field& field : kFields) {
    visit(field);
  }
}

const Field* find_field(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  for (const Field& field : kFields) {
    if (dashed == field.name) {
      return &field;
    }
  }
  return nullptr;
}

bool is_switch(const Field& field) {
  return std::holds_alternative<bool EngineConfig::*>(field.member) ||
         std::holds_alternative<std::optional<bool> EngineConfig::*>(field.member);
}

std::string environment_name(const Field& field) {
  std::string out = "WARPROW_";
  for (const char* c = field.name; *c != '\0'; ++c) {
    out += *c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  return out;
}

Result<void> set_field(EngineConfig& config,
                       const Field& field,
                       std::string_view text,
                       std::string_view where) {
  return std::visit(
      [&](auto member) -> Result<void> {
        auto& target = config.*member;
        using T = std::remove_reference_t<decltype(target)>;
        if constexpr (std::is_same_v<T, std::string>) {
          target = std::string(text);
          if (*field.choices != '\0') {
            target = lower(text);
            if (!is_choice(field.choices, target)) {
              return bad(where, fmt::format("'{}' is none of {}", text, field.choices));
            }
          }
        } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
          if (lower(text) == "auto") {
            target.reset();
            return {};
          }
          const Result<bool> value = parse_switch(text);
          if (!value) {
            return bad(where, fmt::format("'{}' is none of auto, true and false", text));
          }
          target = *value;
        } else {
          const auto value = [&] {
            if constexpr (std::is_same_v<T, bool>) {
              return parse_switch(text);
            } else if constexpr (std::is_same_v<T, double>) {
              return parse_share(text);
            } else {
              constexpr int64_t kTypeMax = std::is_same_v<T, int32_t>
                                               ? int64_t{std::numeric_limits<int32_t>::max()}
                                               : std::numeric_limits<int64_t>::max();
              return parse_number(field, kTypeMax, text);
            }
          }();
          if (!value) {
            return bad(where, value.error().message);
          }
          target = static_cast<T>(*value);
        }
        return {};
      },
      field.member);
}

bool is_only_auto(const EngineConfig& config, const Field& field) {
  if (const auto* choice = std::get_if<std::optional<bool> EngineConfig::*>(&field.member)) {
    return !(config.*(*choice)).has_value();
  }
  const auto* member = std::get_if<int32_t EngineConfig::*>(&field.member);
  return member != nullptr && field.auto_value.value_or(0) != 0 &&
         config.*(*member) == *field.auto_value;
}

std::string field_text(const EngineConfig& config, const Field& field) {
  if (is_only_auto(config, field)) {
    return "auto";
  }
  return visit_value(config, field, [](const auto& value) { return fmt::format("{}", value); });
}

}  // namespace warprow
