// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace warprow {

// The engine's settings as the user gives them. Names follow vLLM's flags. 0 means "decide" where
// a line says so; resolve() (config/resolve.h) decides the rest.
inline constexpr int32_t kAutoTargetItl = -1;         // a value of target_itl_ms
inline constexpr int32_t kAutoPrefillThreshold = -1;  // a value of long_prefill_token_threshold

struct EngineConfig {
  std::string model;                     // file, directory, alias or org/name
  std::string dtype = "auto";            // auto | float32 | bfloat16
  std::string load_format = "auto";      // auto | dummy
  std::string quantization = "none";     // none | fp8 | int8
  std::string fp8_activations = "auto";  // auto | off
  std::string runner = "auto";           // auto | generate | pooling
  std::string convert = "auto";          // auto | embed | classify: what a pooling runner yields
  std::string device = "auto";           // auto | cpu | cuda; for plans also a GPU by name: h200
  // "0,2": GPUs of those the process sees, by rank of this host; empty: as many as there are ranks
  std::string device_ids;
  int32_t tensor_parallel_size = 1;    // ranks that divide each layer
  int32_t pipeline_parallel_size = 1;  // groups of them that divide the list of layers
  int32_t threads = 0;                 // 0: the cores this process may use
  bool pin_threads = false;            // each CPU thread is pinned to a core
  int32_t max_model_len = 0;           // 0: the model's own, reduced to what the KV cache holds
  int32_t max_num_seqs = 0;            // 0: 64 on a CPU, 1024 on a GPU
  // 0: 512 on a CPU, 8192 on a GPU, or 32768 for offline runs on a GPU of 64 GiB or more
  int32_t max_num_batched_tokens = 0;
  // Inter-token latency of running streams. Steps limit their prompt tokens to meet it where possible; 0: no limit.
  int32_t target_itl_ms = kAutoTargetItl;
  std::string scheduling_policy = "fcfs";  // fcfs | priority
  // Tokens that a long prefill gets in a step beside others; 0: all that are left.
  int32_t long_prefill_token_threshold = kAutoPrefillThreshold;
  int32_t block_size = 16;        // tokens in a KV block, a multiple of 16
  int32_t kernel_block_size = 0;  // 0: block_size; else a divisor of it, a multiple of 16
  // 0: min(2 GiB, a quarter of the memory) on a CPU; on a GPU what its share leaves
  int64_t kv_cache_memory_bytes = 0;
  std::string kv_cache_dtype = "auto";     // auto | fp8 | fp8_e4m3 | fp8_e5m2
  bool calculate_kv_scales = false;        // scales of an 8-bit cache from a step at start
  double gpu_memory_utilization = 0.9;     // share of a GPU's memory that the engine may take
  std::string kv_cache_layout = "hnd";     // hnd | nhd: how a KV block lies in memory
  std::string attention_backend = "auto";  // a name, or a list by layers: native:0-3,flashinfer
  // On a GPU: no result depends on the rest of its batch. Empty: where that costs little.
  std::optional<bool> batch_invariant;
  bool enforce_eager = false;           // no graphs
  std::string cudagraph_mode = "auto";  // GraphPolicy (runner/graphs/graph_plan.h), or auto
  std::string cudagraph_capture_sizes = "auto";  // "1,2,4,8": token counts that get graphs
  // raw_logprobs | raw_logits | processed_logprobs | processed_logits
  std::string logprobs_mode = "raw_logprobs";
  int32_t max_logprobs = 20;  // that a request may ask for; -1: as many as the vocabulary has
  bool enable_hidden_states = false;  // requests may ask for hidden states
  bool enable_prompt_embeds = false;  // prompts may have vectors in place of token ids
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  bool async_scheduling = true;
  int32_t grammar_mask_delay_us = 0;  // added to each grammar mask; for tests, without a flag
  bool offline = false;  // no client waits for single tokens; set by commands, without a flag
  std::string speculative_config = "";  // JSON, as vLLM's; empty: none (config/speculation.h)
  std::string spec_method = "";         // its method alone
  int32_t num_speculative_tokens = 0;   // and its draft tokens; 0: not given
  bool enable_lora = false;             // requests may name LoRA adapters
  int32_t max_loras = 1;                // adapters of the requests that run at once
  int32_t max_lora_rank = 16;
  int32_t max_cpu_loras = 0;      // loaded adapters; 0: max_loras
  std::string lora_modules = "";  // name=directory,...: adapters loaded at start
  uint64_t seed = 0;              // draws the seeds of requests that have none
  std::string distributed_executor_backend = "auto";  // auto | uni | mp | external_launcher
  std::string worker_binary = "";       // the program of rank processes; empty: this one
  int32_t stall_timeout = 0;            // seconds; 0: 4, and for ranks 60 on a GPU, 600 on a CPU
  int32_t join_timeout = 600;           // seconds in which all ranks of a launcher must have come
  std::string rank_transport = "auto";  // auto | tcp | nccl
  std::string log_level = "warning";
  std::string log_format = "text";
};

}  // namespace warprow
