// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/ids_hash.h"

#include "kv/block_hash.h"

#include <algorithm>
#include <bit>
#include <span>

namespace warprow {
namespace {

template <typename T>
void add_hash(RowId row, IdsHash::Of of, std::span<const T> ids, std::vector<IdsHash>& hashes) {
  if (!ids.empty()) {
    hashes.push_back({.row = row,
                      .of = of,
                      .count = static_cast<int32_t>(ids.size()),
                      .hash = sip_hash_128(std::as_bytes(ids)).lo});
  }
}

// The tokens and logprobs of a row, as words.
std::vector<int32_t> words_of(const ModelRunnerOutput& message, const RowOutput& row) {
  const std::span tokens = slice(message.token_ids, row.tokens);
  std::vector<int32_t> words(tokens.begin(), tokens.end());
  const auto add = [&](const std::vector<TokenLogprobs>& list, Span32 which) {
    for (const TokenLogprobs& token : slice(list, which)) {
      words.push_back(std::bit_cast<int32_t>(token.logprob));
      words.push_back(token.rank);
      for (const TokenId id : slice(message.top_ids, token.top)) {
        words.push_back(id);
      }
      for (const float logprob : slice(message.top_logprobs, token.top)) {
        words.push_back(std::bit_cast<int32_t>(logprob));
      }
    }
  };
  if (message.has_logprobs) {
    add(message.logprobs, row.tokens);
  }
  add(message.prompt_logprobs, row.prompt_logprobs);
  return words;
}

}  // namespace

void hide_ids(SchedulerOutput& message, std::vector<IdsHash>& hashes) {
  using Of = IdsHash::Of;
  for (NewRow& row : message.new_rows) {
    add_hash(row.row, Of::kPrefill, slice(message.token_ids, row.tokens), hashes);
    add_hash(row.row, Of::kStopIds, slice(message.stop_ids, row.stop_ids), hashes);
    add_hash(row.row, Of::kTokenLists, slice(message.token_lists, row.token_lists), hashes);
    if (row.embeds.count > 0) {
      add_hash(row.row, Of::kPrefill, std::span<const float>(message.embeddings.values), hashes);
    }
    row.tokens = row.stop_ids = row.token_lists = row.embeds = {};
  }
  add_hash(kNoRow, Of::kDrafts, std::span<const TokenId>(message.draft_token_ids), hashes);
  message.token_ids.clear();
  message.stop_ids.clear();
  message.token_lists.clear();
  message.draft_token_ids.clear();
  message.embeddings.width = 0;
  message.embeddings.values.clear();
  message.encoder_frees.clear();
  message.connector_metadata.clear();
}

void hide_ids(GrammarOutput& message, std::vector<IdsHash>& hashes) {
  size_t num_masks = 0;
  for (const MaskedRow& row : message.masked_rows) {
    num_masks += static_cast<size_t>(row.num_masks);
  }
  const size_t mask_words = message.bitmask.size() / std::max<size_t>(num_masks, 1);
  size_t at = 0;
  for (const MaskedRow& row : message.masked_rows) {
    const size_t num_words = mask_words * static_cast<size_t>(row.num_masks);
    add_hash(row.row,
             IdsHash::Of::kMasks,
             std::span<const uint32_t>(message.bitmask).subspan(at, num_words),
             hashes);
    at += num_words;
  }
  message.bitmask.assign(num_masks, 0);
}

void hide_ids(ModelRunnerOutput& message, std::vector<IdsHash>& hashes) {
  for (RowOutput& row : message.rows) {
    add_hash(
        row.row, IdsHash::Of::kSampled, std::span<const int32_t>(words_of(message, row)), hashes);
    add_hash(row.row, IdsHash::Of::kProposed, slice(message.draft_token_ids, row.drafts), hashes);
    row.prompt_logprobs = row.hidden = row.pooled = row.tensors = row.drafts = {};
  }
  std::ranges::fill(message.token_ids, 0);
  message.draft_token_ids.clear();
  message.has_logprobs = false;
  message.logprobs.clear();
  message.prompt_logprobs.clear();
  message.top_ids.clear();
  message.top_logprobs.clear();
  message.hidden_states.reset();
  message.pooled.reset();
  message.tensors.clear();
  message.connector_output.clear();
}

}  // namespace warprow
