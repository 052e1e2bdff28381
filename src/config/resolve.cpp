// SPDX-License-Identifier: Apache-2.0
#include "config/resolve.h"

#include <algorithm>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr int32_t kCpuTargetItlMs = 15;  // some 65 tokens a second for each stream: docs/adr/0050
// A prompt of a few steps ends soon: smaller chunks would only slow down such prompts. An eighth of a
// step still has enough tokens for the GEMMs to run at full speed.
constexpr int32_t kLongPromptSteps = 8;
constexpr int32_t kLongPrefillShare = 8;
constexpr int32_t kCpuSeqs = 64;
constexpr int32_t kCpuBatchedTokens = 512;
constexpr int64_t kCpuKvBytes = int64_t{2} << 30;
// A step of n tokens takes about 1 + kCpuDraftCost * (n - 1) times as long as one of a token (docs/adr/0030).
constexpr double kCpuDraftCost = 0.15;
// A step of more tokens than this takes longer, on Hopper with bf16 weights (docs/adr/0038).
constexpr double kGpuDraftKnee = 180;
constexpr int32_t kGpuSeqs = 1024;
constexpr int32_t kGpuBatchedTokens = 8192;
// Where only throughput counts and 2 GiB more for activations are small beside the cache. More rows meet each expert's matrices.
constexpr int32_t kOfflineGpuBatchedTokens = 32768;
constexpr int64_t kLargeGpuBytes = int64_t{64} << 30;

tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

// The longest request as far as it is known: 0 if it depends on a model that is not read yet.
int32_t known_max_len(const EngineConfig& config, const HostFacts& host) {
  return config.max_model_len != 0 ? config.max_model_len : host.model_max_len;
}

// If the user gave one of two values, the open one follows it, so that one flag alone never contradicts a
// default.
void decide_batch(ResolvedConfig& config, const HostFacts& host) {
  const bool gpu = config.device == "cuda";
  const int32_t seqs = gpu ? kGpuSeqs : kCpuSeqs;
  const bool large_steps = config.offline && host.gpu_memory_bytes >= kLargeGpuBytes;
  const int32_t batched_tokens = !gpu          ? kCpuBatchedTokens
                                 : large_steps ? kOfflineGpuBatchedTokens
                                               : kGpuBatchedTokens;
  if (config.max_num_seqs == 0) {
    config.max_num_seqs =
        config.max_num_batched_tokens == 0 ? seqs : std::min(seqs, config.max_num_batched_tokens);
  }
  if (config.target_itl_ms == kAutoTargetItl) {
    config.target_itl_ms = gpu || config.offline ? 0 : kCpuTargetItlMs;
  }
  if (config.max_num_batched_tokens == 0) {
    config.max_num_batched_tokens = std::max(batched_tokens, config.max_num_seqs);
    if (!config.enable_chunked_prefill) {
      config.max_num_batched_tokens =
          std::max(config.max_num_batched_tokens, known_max_len(config, host));
    }
  }
}

void decide_long_prefills(ResolvedConfig& config) {
  if (config.long_prefill_token_threshold == kAutoPrefillThreshold) {
    config.long_prefill_token_threshold =
        std::max(1, config.max_num_batched_tokens / kLongPrefillShare);
    config.long_prompt_len = kLongPromptSteps * config.max_num_batched_tokens;
  }
}

Result<void> decide_device(ResolvedConfig& config, const HostFacts& host) {
  if (config.device == "auto") {
    config.device = host.has_cuda ? "cuda" : "cpu";
  }
  if (config.device == "cpu") {
    return {};
  }
  if (!host.has_cuda) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format(
            "--device: {} is not available here ({}); use cpu", config.device, host.why_no_cuda));
  }
  config.device = "cuda";
  return {};
}

// On by default where it costs a decode step at most some percent (docs/performance.md). The kernels with one order of
// sums are those of Hopper. A mixture of attention backends has two orders.
void decide_batch_invariance(ResolvedConfig& config, const HostFacts& host) {
  constexpr int32_t kHopper = 90;
  if (!config.batch_invariant) {
    config.batch_invariant =
        config.device == "cpu" ||
        (host.compute_capability == kHopper &&
         (config.attention_backend == "auto" || config.attention_backend == "native"));
  }
}

Result<void> decide_speculation(ResolvedConfig& config) {
  Result<Speculation> speculation = read_speculation(config);
  if (!speculation) {
    return tl::unexpected(speculation.error());
  }
  if (config.device != "cpu" && speculation->method == Speculation::Method::kSuffix) {
    return refuse(
        "--speculative-config: the method suffix is not supported on a GPU, as it "
        "searches on a CPU's threads; the methods there are ngram, draft_model, eagle, eagle3 and "
        "mtp");
  }
  config.speculation = *speculation;
  if (speculation->is_on() && speculation->adaptive) {
    (config.device == "cpu" ? config.draft_cost : config.draft_knee) =
        config.device == "cpu" ? kCpuDraftCost : kGpuDraftKnee;
  }
  return {};
}

Result<void> check_limits(const ResolvedConfig& config, const HostFacts& host) {
  constexpr int32_t kMostOnGpu = 128;  // what the sampling kernels sort
  if (config.device == "cuda" && (config.max_logprobs == -1 || config.max_logprobs > kMostOnGpu)) {
    return refuse(fmt::format("--max-logprobs: {} is more than {}, which a GPU reports at most",
                              config.max_logprobs,
                              kMostOnGpu));
  }
  if (config.block_size <= 0 || config.block_size % 16 != 0) {
    return refuse(fmt::format("--block-size: {} is not a multiple of 16", config.block_size));
  }
  if (config.kernel_block_size < 0 || config.kernel_block_size % 16 != 0) {
    return refuse(
        fmt::format("--kernel-block-size: {} is not a multiple of 16", config.kernel_block_size));
  }
  if (config.kernel_block_size != 0 && config.block_size % config.kernel_block_size != 0) {
    return refuse(fmt::format("--kernel-block-size: {} does not divide --block-size {}",
                              config.kernel_block_size,
                              config.block_size));
  }
  if (host.model_max_len != 0 && config.max_model_len > host.model_max_len) {
    return refuse(fmt::format(
        "--max-model-len: {} is above the model's {}", config.max_model_len, host.model_max_len));
  }
  if (config.max_num_batched_tokens < config.max_num_seqs) {
    return refuse(
        fmt::format("--max-num-batched-tokens: {} is below --max-num-seqs {}; each running request "
                    "needs a token "
                    "in a step",
                    config.max_num_batched_tokens,
                    config.max_num_seqs));
  }
  const int32_t max_len = known_max_len(config, host);
  if (!config.enable_chunked_prefill && config.max_num_batched_tokens < max_len) {
    return refuse(
        fmt::format("--max-num-batched-tokens: {} is below the longest prompt, {}, which "
                    "--no-enable-chunked-prefill "
                    "runs in one step",
                    config.max_num_batched_tokens,
                    max_len));
  }
  return {};
}

Result<void> decide_lora(ResolvedConfig& config) {
  if (!config.enable_lora) {
    if (!config.lora_modules.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--lora-modules: {} needs --enable-lora", config.lora_modules));
    }
    return {};
  }
  if (config.max_cpu_loras == 0) {
    config.max_cpu_loras = config.max_loras;
  }
  if (config.max_cpu_loras < config.max_loras) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "--max-cpu-loras: {} is below --max-loras {}", config.max_cpu_loras, config.max_loras));
  }
  return {};
}

Result<void> decide_kv_dtype(ResolvedConfig& config) {
  if (config.kv_cache_dtype == "fp8") {
    config.kv_cache_dtype = "fp8_e4m3";
  }
  if (config.calculate_kv_scales && config.kv_cache_dtype == "auto") {
    return refuse("--calculate-kv-scales: needs --kv-cache-dtype fp8; auto has no scales");
  }
  return {};
}

}  // namespace

Result<ResolvedConfig> resolve(const EngineConfig& settings, const HostFacts& host) {
  ResolvedConfig config{settings};
  if (Result<void> decided = decide_device(config, host); !decided) {
    return tl::unexpected(decided.error());
  }
  if (config.threads == 0) {
    config.threads = std::max(1, host.usable_cores);
  }
  if (config.kv_cache_memory_bytes == 0 && config.device == "cpu") {
    config.kv_cache_memory_bytes = std::min(kCpuKvBytes, host.usable_memory_bytes / 4);
  }
  decide_batch(config, host);
  decide_batch_invariance(config, host);
  decide_long_prefills(config);
  if (Result<void> decided = decide_speculation(config); !decided) {
    return tl::unexpected(decided.error());
  }
  if (Result<void> decided = decide_kv_dtype(config); !decided) {
    return tl::unexpected(decided.error());
  }
  if (Result<void> decided = decide_lora(config); !decided) {
    return tl::unexpected(decided.error());
  }
  if (config.cudagraph_mode == "auto") {
    config.cudagraph_mode = config.device == "cuda" ? "full_and_piecewise" : "none";
  }
  if (config.enforce_eager) {
    config.cudagraph_mode = "none";
  }
  if (Result<void> checked = check_limits(config, host); !checked) {
    return tl::unexpected(checked.error());
  }
  return config;
}

}  // namespace warprow
