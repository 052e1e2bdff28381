// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "base/wake_up.h"
#include "engine/observe.h"
#include "text/grammar.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

namespace warprow {

// How far each structured request is in its grammar, and the masks of its next tokens: of the next
// one, and of those behind drafts that the grammar accepts. In the thinking section before a grammar
// tokens are followed as well, and need no masks. A place follows the request, not its row: it outlives
// preemption. Worker threads take the tokens and fill the masks, so the engine's thread waits for a
// grammar only where it wants to.
//
// Owns: places with their matchers and masks; the worker threads, started with the first place.
// Thread: the engine's.
// Invariant: a busy place is touched by its worker alone.
class GrammarProgress {
 public:
  enum class State : uint8_t {
    kWaiting,  // its request has not run yet: nothing is done for it
    kStale,    // the masks were used; the tokens drawn with them are not known yet
    kBusy,     // a worker takes tokens or fills masks
    kReady,    // the masks are for the next tokens, or any may come
    kEnded,    // nothing but an end token may follow
    kFailed,   // a step exceeded the library's limits
    kStuck,    // no token of the vocabulary spells what must follow
  };
  struct Stats {
    int64_t num_masks = 0;
    int64_t busy_us = 0;  // taking tokens and filling masks, over all workers
  };

  // delay: added to each place's masks, for tests. max_drafts: of a row in a step.
  GrammarProgress(int32_t vocab_size,
                  int32_t num_threads,
                  std::chrono::microseconds delay,
                  int32_t max_drafts = 0);
  ~GrammarProgress();
  GrammarProgress(const GrammarProgress&) = delete;
  GrammarProgress& operator=(const GrammarProgress&) = delete;

  // A place at the grammar's beginning. Returns its number; remove() gives that back.
  int32_t add(uint64_t request, const Grammar& grammar);
  // Of a place whose request has a row: begins its first mask, if that was not begun before.
  void start(int32_t place);
  // Of a stale place: takes the tokens drawn with the masks used last and begins the next ones.
  // drafts: of the tokens behind these; -1 and what follows it is no draft.
  void accept(int32_t place, std::span<const TokenId> tokens, std::span<const TokenId> drafts = {});
  // Of a ready place: its masks, at most so many, u32 [num_masks, num_words()], which then count as
  // used, by this step. Mask i holds if the first i drafts are accepted. There are fewer than wanted
  // where the grammar refuses a draft or ends with it. None at all where they would forbid nothing: in a
  // thinking section, unless a draft ends it.
  std::span<const uint32_t> use_masks(int32_t place, int32_t max_masks, int64_t step);
  // In any state.
  void remove(int32_t place);
  // Does nothing for a request without a place.
  void remove_request(uint64_t request);

  [[nodiscard]] State state(int32_t place) const;
  // Whether the request has a place with a worker.
  [[nodiscard]] bool is_busy(uint64_t request) const;
  [[nodiscard]] uint64_t request_of(int32_t place) const {
    return places_[static_cast<size_t>(place)]->request;
  }
  [[nodiscard]] int64_t num_words() const { return num_words_; }

  // Adds the places that ended or failed since the last call and are still there.
  void take_finished(std::vector<int32_t>& places);
  // Where wait() waits and workers notify: the engine thread's one wait, which others may end as well.
  // Before the first place; without it a wait of its own.
  void share_wake_up(WakeUp& wake_up) { wake_up_ = &wake_up; }
  // Blocks until a worker is done with a place, or another has notified, since the last wait; at most
  // so long.
  void wait(std::chrono::microseconds longest);
  [[nodiscard]] Stats stats() const;
  [[nodiscard]] const MaskLog& fills() const { return fills_; }

 private:
  struct Place {
    uint64_t request = 0;
    int32_t number = 0;
    std::optional<Grammar> grammar;  // until the first worker has made the matcher
    std::optional<GrammarMatcher> matcher;
    std::vector<TokenId> tokens;    // to take before masks are filled
    std::vector<TokenId> drafts;    // of what follows
    std::vector<uint32_t> words;    // [1 + max_drafts, num_words]
    int32_t num_masks = 0;          // filled
    bool is_free = false;           // they forbid nothing
    int32_t num_used = 0;           // by the step
    int64_t step = 0;               // that used the last masks
    State state = State::kWaiting;  // under the mutex, like the next
    bool removed = false;           // the worker that meets it frees it: a parser is no small thing
  };

  void begin(Place& place);
  void push(Place* place);
  Place* pop();
  void run(int32_t worker);
  [[nodiscard]] State advance(Place& place) const;
  void look_ahead(Place& place) const;
  [[nodiscard]] std::span<uint32_t> mask_of(Place& place, int32_t index) const {
    return std::span(place.words)
        .subspan(static_cast<size_t>(index * num_words_), static_cast<size_t>(num_words_));
  }
  void finish(Place& place, State state);

  int64_t num_words_;
  int32_t num_threads_;
  std::chrono::microseconds delay_;
  int32_t max_drafts_;
  std::vector<std::unique_ptr<Place>> places_;  // by number; null: free
  std::vector<int32_t> free_;
  std::unordered_map<uint64_t, int32_t> place_of_;

  WakeUp own_wake_up_;
  WakeUp* wake_up_ = &own_wake_up_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable closing_;  // cuts delays short
  std::deque<Place*> running_;  // to the workers: places whose requests wait for their next token
  std::deque<Place*> others_;   // behind these: first masks, and what is to be freed
  std::vector<int32_t> finished_;
  bool closed_ = false;
  Stats stats_;
  MaskLog fills_;
  std::vector<std::thread> threads_;
};

}  // namespace warprow
