// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"

#include <cstdint>
#include <string>

namespace warprow {

// The most draft tokens that a row may have in a step.
inline constexpr int32_t kMaxDrafts = 16;
inline constexpr int32_t kMaxModelDrafts = 12;  // the same for drafts of a model
inline constexpr int32_t kMaxSuffixDepth = 64;  // of suffix_decoding_max_tree_depth

// The keys suffix_decoding_*, with vLLM's defaults.
struct SuffixSettings {
  int32_t max_tree_depth = 24;          // tokens of a match and the drafts behind it together
  int32_t max_cached_requests = 10000;  // whose outputs are searched, too; 0: none
  double max_spec_factor = 1;           // drafts for each matched token
  double min_token_prob = 0.1;          // below which no token is drafted
};

// How drafts are made, read from --speculative-config or --spec-method. Keys and defaults are vLLM's.
struct Speculation {
  enum class Method : uint8_t {
    kNone,
    kNgram,       // the tokens that followed an earlier occurrence of the row's last tokens
    kSuffix,      // those that followed most often, in the row and in the latest outputs
    kDraftModel,  // the most likely tokens of a smaller model
    kEagle,       // of a head that reads the model's last hidden states
    kEagle3,      // of one that reads those of three layers
    kMtp,         // of the layer behind the model's last one, which its own checkpoint has
  };

  Method method = Method::kNone;
  int32_t num_drafts = 0;  // num_speculative_tokens: of a row in a step, at most
  // Tokens that an earlier occurrence must have in common with the row's end; 1 <= min <= max.
  int32_t prompt_lookup_min = 0;
  int32_t prompt_lookup_max = 0;
  SuffixSettings suffix;
  std::string model;            // where has_files: a path or name, as of the engine's model
  bool default_drafts = false;  // num_drafts was not given
  // For measurements: each draft is accepted with this probability, whatever the model says. 0: drafts are verified.
  double synthetic_acceptance = 0;
  // With has_model(): drafts are drawn and verified by ratio, not by match (docs/sampling.md#drafts).
  bool ratio = false;
  bool adaptive = true;  // fewer drafts, or none, where they do not pay; not a key of vLLM's
  // With has_model(): the ranks divide the drafter as they divide the engine's model (draft_tensor_parallel_size). Else
  // every rank has all of it.
  bool divided = true;

  [[nodiscard]] bool is_on() const { return method != Method::kNone; }
  // Whether the number of a row's drafts never depends on the batch.
  [[nodiscard]] bool whole_drafts() const { return ratio && !adaptive; }
  // Positions behind a step's tokens that the proposer writes keys and values of.
  [[nodiscard]] int32_t lookahead() const { return has_model() ? num_drafts : 0; }
  // Whether drafts come from a model's or a head's forwards.
  [[nodiscard]] bool has_model() const { return method == Method::kDraftModel || has_head(); }
  [[nodiscard]] bool has_head() const {
    return method == Method::kEagle || method == Method::kEagle3 || method == Method::kMtp;
  }
  // Whether that model or head is another one than the engine's.
  [[nodiscard]] bool has_files() const { return has_model() && method != Method::kMtp; }
};

// The settings' speculation; kNone if no setting asks for one. An error names the setting, the key, its value and what
// is allowed.
Result<Speculation> read_speculation(const EngineConfig& settings);

}  // namespace warprow
