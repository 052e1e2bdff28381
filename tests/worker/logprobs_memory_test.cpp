// SPDX-License-Identifier: Apache-2.0
// The memory cost of logprobs with a vocabulary of 151,936, from the plans of a GPU and of the CPU.
#include "kernels/sample/sample.h"
#include "runner/logits_head.h"
#include "runner/output_ring.h"
#include "runner/sample/sampler.h"
#include "tests/support/mib.h"
#include "tests/support/temp_dir.h"
#include "worker/model_plan.h"

#include <cstdint>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr int64_t kVocab = 151936;
using test::kMiB;
constexpr int64_t kRowBytes = kVocab * static_cast<int64_t>(sizeof(float));

EngineConfig config_in(const test::TempDir& dir) {
  const nlohmann::json model = {{"architectures", {"Qwen3ForCausalLM"}},
                                {"num_hidden_layers", 1},
                                {"hidden_size", 256},
                                {"num_attention_heads", 4},
                                {"num_key_value_heads", 2},
                                {"head_dim", 64},
                                {"intermediate_size", 64},
                                {"vocab_size", kVocab},
                                {"max_position_embeddings", 32768},
                                {"rms_norm_eps", 1e-5},
                                {"rope_theta", 10000.0}};
  dir.write("config.json", model.dump());
  EngineConfig config;
  config.model = dir.path().string();
  config.load_format = "dummy";
  config.max_num_batched_tokens = 2048;
  return config;
}

int64_t workspace_of(const EngineConfig& config) {
  return value_or_throw(plan_model(config, this_machine(config.device))).memory.workspace_bytes;
}

// All memory that grows with the number of rows that logits have room for.
int64_t bytes_of_rows(DeviceKind device, int64_t rows) {
  return rows * (kRowBytes + static_cast<int64_t>(sizeof(int32_t))) +
         static_cast<int64_t>(sample_scratch_bytes(device, kVocab, rows, 2));
}

TEST(LogprobsMemory, APromptOf32768TokensTakesLessThan64MiB) {
  const test::TempDir dir;
  EngineConfig config = config_in(dir);
  for (const char* device : {"h200", "cpu"}) {
    config.device = device;
    const DeviceKind kind = config.device == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
    for (const int32_t num_seqs : {1, 8, 64, 256}) {
      SCOPED_TRACE(std::string(device) + " " + std::to_string(num_seqs));
      config.max_num_seqs = num_seqs;
      config.max_model_len = 32768;
      const int64_t whole = workspace_of(config);
      const int32_t rows = LogitsHead::max_rows(
          kVocab, {.max_num_seqs = num_seqs, .max_num_toks = config.max_num_batched_tokens});
      const int64_t without = whole - bytes_of_rows(kind, rows) + bytes_of_rows(kind, num_seqs);
      EXPECT_LE(whole - without, 64 * kMiB);
      EXPECT_GE(rows, 16) << "fewer would read the head's weights for few tokens";
    }
  }
  // Host memory: the ring that the device writes, and the entries of a whole prompt.
  const int32_t toks = config.max_num_batched_tokens;
  const int64_t ring = 2 * sampled_arrays_bytes(toks, toks, Sampler::kMaxPromptTop);
  const int64_t entries =
      32768 * (static_cast<int64_t>(sizeof(TokenLogprobs)) + Sampler::kMaxPromptTop * 8);
  EXPECT_LE(ring + entries, 32 * kMiB);
}

// 256 rows have room for a processed copy of the logits, which rows with token rules are sampled from, with logprobs or
// without. Logprobs add far less than another copy.
TEST(LogprobsMemory, ManyRowsWithLogprobsHaveNoCopyOfTheirLogits) {
  const auto scratch =
      static_cast<int64_t>(sample_scratch_bytes(DeviceKind::kCuda, kVocab, 256, 2));
  EXPECT_LT(scratch - 256 * kRowBytes, 256 * kRowBytes / 4);
  EXPECT_LT(sampled_arrays_bytes(256, 256, StepLimits().max_top), kMiB);
  // A CPU has one scratch per worker thread, whatever the number of rows.
  EXPECT_EQ(sample_scratch_bytes(DeviceKind::kCpu, kVocab, 256, 2),
            sample_scratch_bytes(DeviceKind::kCpu, kVocab, 1, 2));
  const test::TempDir dir;
  EngineConfig config = config_in(dir);
  config.device = "h200";
  config.max_model_len = 4096;
  config.max_num_seqs = 256;
  const int64_t with_256 = workspace_of(config);
  config.max_num_seqs = 128;
  const int64_t a_row = (with_256 - workspace_of(config)) / 128;
  EXPECT_LT(a_row, 2 * kRowBytes + kRowBytes / 4)
      << "its logits and the processed copy, no third copy";
}

// Each draft has a row of logits and, on a GPU, of the processed copy. There is no third one, neither of all rows that are
// verified nor of what a drafter computes, on one rank or more (vLLM caps such a copy at 1 GiB).
TEST(LogprobsMemory, DraftsHaveNoCopyOfTheirLogits) {
  constexpr int32_t kSeqs = 64;
  constexpr int32_t kDrafts = 3;
  const test::TempDir dir;
  EngineConfig config = config_in(dir);
  config.max_num_seqs = kSeqs;
  config.max_model_len = 4096;
  for (const char* device : {"h200", "cpu"}) {
    SCOPED_TRACE(device);
    config.device = device;
    config.tensor_parallel_size = 1;
    const auto workspace_with = [&](const std::string& speculation) {
      config.speculative_config = speculation;
      return workspace_of(config);
    };
    const std::string ngram = R"({"method": "ngram", "num_speculative_tokens": 3})";
    const std::string model =
        R"({"model": ")" + config.model + R"(", "num_speculative_tokens": 3})";
    const int64_t with = workspace_with(ngram);
    const int64_t a_draft = (with - workspace_with("")) / (kSeqs * kDrafts);
    const int64_t copies = config.device == "cpu" ? 1 : 2;
    EXPECT_GE(a_draft, kRowBytes);
    EXPECT_LT(a_draft, copies * kRowBytes + kRowBytes / 4);
    // The activations of 2048 tokens have 64 MiB at most.
    EXPECT_LT(workspace_with(model) - with, 64 * kMiB);
    EXPECT_LT(64 * kMiB, kSeqs * kDrafts * kRowBytes);
    if (config.device == "cpu") {
      config.tensor_parallel_size = 2;
      EXPECT_LT(workspace_with(model) - workspace_with(ngram), 64 * kMiB);
    }
  }
}

// Penalties count a row's own tokens in each step. No row keeps counts over the vocabulary.
TEST(LogprobsMemory, PenaltiesKeepNoCounts) {
  const test::TempDir dir;
  EngineConfig config = config_in(dir);
  config.max_model_len = 4096;
  for (const char* device : {"h200", "cpu"}) {
    SCOPED_TRACE(device);
    config.device = device;
    const auto state_of = [&](int32_t rows) {
      config.max_num_seqs = rows;
      return value_or_throw(plan_model(config, this_machine(config.device))).memory.state_bytes;
    };
    EXPECT_LT((state_of(256) - state_of(128)) / 128, kRowBytes / 4);
  }
}

}  // namespace
}  // namespace warprow
