// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/row_difference.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

#include <fmt/format.h>

namespace warprow {
namespace {

std::string count_difference(std::string_view what, int64_t recorded, int64_t got) {
  return recorded == got ? "" : fmt::format("{} {} instead of {}", got, what, recorded);
}

std::string_view failure_name(RowFailure failure) {
  switch (failure) {
    case RowFailure::kNone:
      return "none";
    case RowFailure::kBadLogits:
      return "bad logits";
    case RowFailure::kNothingLeft:
      return "no token left";
  }
  return "unknown";
}

std::string failure_difference(RowFailure recorded, RowFailure got) {
  return recorded == got
             ? ""
             : fmt::format("failure: {} instead of {}", failure_name(got), failure_name(recorded));
}

std::string id_difference(std::string_view what,
                          std::span<const TokenId> recorded,
                          std::span<const TokenId> got) {
  for (size_t i = 0; i < std::min(recorded.size(), got.size()); ++i) {
    if (recorded[i] != got[i]) {
      return fmt::format("{} {} is {} instead of {}", what, i, got[i], recorded[i]);
    }
  }
  return {};
}

bool is_same_number(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

bool is_same(const ModelRunnerOutput& a,
             const TokenLogprobs& of_a,
             const ModelRunnerOutput& b,
             const TokenLogprobs& of_b) {
  return is_same_number(of_a.logprob, of_b.logprob) && of_a.rank == of_b.rank &&
         std::ranges::equal(slice(a.top_ids, of_a.top), slice(b.top_ids, of_b.top)) &&
         std::ranges::equal(
             slice(a.top_logprobs, of_a.top), slice(b.top_logprobs, of_b.top), is_same_number);
}

std::string logprob_difference(std::string_view what,
                               const ModelRunnerOutput& recorded,
                               std::span<const TokenLogprobs> of_recorded,
                               const ModelRunnerOutput& got,
                               std::span<const TokenLogprobs> of_got) {
  for (size_t i = 0; i < std::min(of_recorded.size(), of_got.size()); ++i) {
    if (!is_same(recorded, of_recorded[i], got, of_got[i])) {
      return fmt::format("the logprobs of {} {} differ: {:.9g} instead of {:.9g}",
                         what,
                         i,
                         of_got[i].logprob,
                         of_recorded[i].logprob);
    }
  }
  return {};
}

std::span<const TokenLogprobs> token_logprobs(const ModelRunnerOutput& output,
                                              const RowOutput& row) {
  return output.has_logprobs ? slice(output.logprobs, row.tokens)
                             : std::span<const TokenLogprobs>();
}

}  // namespace

std::string row_difference(const ModelRunnerOutput& recorded,
                           const RowOutput& recorded_row,
                           const ModelRunnerOutput& got,
                           const RowOutput& got_row) {
  // A cause before its effects: other tokens can cause other counts.
  const std::string found[] = {
      id_difference("token",
                    slice(recorded.token_ids, recorded_row.tokens),
                    slice(got.token_ids, got_row.tokens)),
      failure_difference(recorded_row.failure, got_row.failure),
      count_difference("tokens", recorded_row.tokens.count, got_row.tokens.count),
      count_difference("rejected tokens", recorded_row.num_rejected, got_row.num_rejected),
      logprob_difference("token",
                         recorded,
                         token_logprobs(recorded, recorded_row),
                         got,
                         token_logprobs(got, got_row)),
      count_difference(
          "prompt logprobs", recorded_row.prompt_logprobs.count, got_row.prompt_logprobs.count),
      logprob_difference("prompt token",
                         recorded,
                         slice(recorded.prompt_logprobs, recorded_row.prompt_logprobs),
                         got,
                         slice(got.prompt_logprobs, got_row.prompt_logprobs)),
      id_difference("draft",
                    slice(recorded.draft_token_ids, recorded_row.drafts),
                    slice(got.draft_token_ids, got_row.drafts)),
  };
  for (const std::string& one : found) {
    if (!one.empty()) {
      return one;
    }
  }
  return {};
}

}  // namespace warprow
