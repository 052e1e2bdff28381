// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sched/draft_length.h"
#include "sched/kv_cache_manager.h"
#include "sched/request.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace warprow {

// A live request. The fields that every step reads come first, in three cache lines.
//
// A step in flight that samples yields at least one output, and one more for each accepted draft. Counts that
// depend on this are kept as two bounds, least_ and most_. Without drafts both are equal.
// Invariant: num_computed <= num_known() + most_pending.
struct LiveRequest {
  enum class State : uint8_t { kWaiting, kRunning };

  State state = State::kWaiting;
  bool held = false;   // running, but not scheduled until resume()
  RowId row = kNoRow;  // while running
  // Upper bound of the tokens whose KV is in the cache or computed by a step in flight, as if all drafts in flight
  // were accepted.
  int32_t num_computed = 0;
  int32_t least_pending = 0;  // lower bound of the outputs in flight: the steps that sample
  int32_t most_pending = 0;   // upper bound: the logits of these steps
  int64_t sampled_step = 0;   // the last step that samples
  int32_t max_len = 0;        // prompt + outputs at which it ends by length
  int32_t prefill_len = 0;    // known tokens when it took its row
  int32_t stop_from_len = 0;  // EOS and stop ids are ignored up to this length (min_tokens)
  int32_t grammar = -1;       // Request::grammar
  int32_t prev = -1;          // links of the list it is in
  int32_t next = -1;
  int32_t num_cached_tokens = -1;  // prefix hit of the first admission; -1 before it
  std::vector<TokenId> tokens;     // known: prompt and outputs
  std::shared_ptr<const EmbeddingVectors> embeds;  // Request::embeds
  uint64_t arrival = 0;                            // increases; never reused
  uint64_t id = 0;
  std::vector<TokenId> eos_token_ids;
  std::vector<TokenId> stop_token_ids;
  RequestKv kv;
  int32_t prompt_len = 0;
  int32_t priority = 0;
  int32_t adapter = -1;
  SamplingParams params;
  std::vector<int32_t> token_lists;
  DraftRecord drafts;
  bool may_draft = true;  // Request::may_draft

  [[nodiscard]] int32_t num_known() const { return static_cast<int32_t>(tokens.size()); }
  // Lower bound of num_computed, as if no draft in flight were accepted: no later step runs a token before this
  // one, unless the last step is withheld.
  [[nodiscard]] int32_t least_computed() const {
    return num_computed - (most_pending - least_pending);
  }
  // Known tokens whose KV no later step writes. With a grammar the last step in flight may still be withheld from
  // the row, whose last token then runs again.
  [[nodiscard]] int32_t num_confirmed() const {
    const bool may_run_again = grammar >= 0 && least_pending > 0;
    return std::min(least_computed() - (may_run_again ? 1 : 0), num_known());
  }
};

// The live requests, in slots that are reused. The step loop refers to them by index; ids are looked up only in
// calls from outside.
//
// Owns: the requests.
// Thread: one, the scheduler's.
// Invariant: an index stays valid until remove(); references do not survive add().
class RequestTable {
 public:
  // The slot keeps its vectors' capacity from one request to the next.
  int32_t add(uint64_t id);
  void remove(int32_t index);
  // -1 if no live request has this id.
  [[nodiscard]] int32_t find(uint64_t id) const;
  [[nodiscard]] LiveRequest& operator[](int32_t index) {
    return slots_[static_cast<size_t>(index)];
  }
  [[nodiscard]] const LiveRequest& operator[](int32_t index) const {
    return slots_[static_cast<size_t>(index)];
  }

 private:
  std::vector<LiveRequest> slots_;
  std::vector<int32_t> free_;
  std::unordered_map<uint64_t, int32_t> index_of_id_;
};

// An intrusive linked list of requests. A request is in one list at a time.
class RequestList {
 public:
  explicit RequestList(RequestTable& table) : table_(table) {}

  [[nodiscard]] int32_t front() const { return head_; }  // -1: empty
  [[nodiscard]] int32_t back() const { return tail_; }
  [[nodiscard]] int32_t size() const { return size_; }
  void insert_after(int32_t before, int32_t index);  // before -1: at the front
  void erase(int32_t index);

 private:
  RequestTable& table_;
  int32_t head_ = -1;
  int32_t tail_ = -1;
  int32_t size_ = 0;
};

}  // namespace warprow
