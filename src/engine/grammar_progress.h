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

// The grammar state of each structured request, and the masks of its next tokens: for the next one, and for
// those after drafts that the grammar accepts. In the thinking section before a grammar, tokens are followed too
// and need no masks. A place belongs to the request, not to its row: it survives preemption. Worker threads process
// tokens and fill masks, so the engine thread waits for a grammar only in wait().
//
// Owns: places with their matchers and masks; the worker threads, started with the first place.
// Thread: the engine's.
// Invariant: only its worker touches a busy place.
class GrammarProgress {
 public:
  enum class State : uint8_t {
    kWaiting,  // its request has not run yet: no work is done for it
    kStale,    // the masks were used; the tokens drawn with them are not known yet
    kBusy,     // a worker processes tokens or fills masks
    kReady,    // the masks are for the next tokens, or any token may come
    kEnded,    // only an end token may follow
    kFailed,   // a step exceeded the library's limits
    kStuck,    // no token of the vocabulary spells what must follow
  };
  struct Stats {
    int64_t num_masks = 0;
    int64_t busy_us = 0;  // processing tokens and filling masks, over all workers
  };

  // delay: added to each place's masks, for tests. max_drafts: of a row in a step.
  GrammarProgress(int32_t vocab_size,
                  int32_t num_threads,
                  std::chrono::microseconds delay,
                  int32_t max_drafts = 0);
  ~GrammarProgress();
  GrammarProgress(const GrammarProgress&) = delete;
  GrammarProgress& operator=(const GrammarProgress&) = delete;

  // Adds a place at the grammar's start. Returns its number, which remove() frees.
  int32_t add(uint64_t request, const Grammar& grammar);
  // Starts the first mask of a place whose request has a row, if it was not started before.
  void start(int32_t place);
  // For a stale place: processes the tokens drawn with its last masks and starts the next masks. drafts: proposed
  // tokens after these; the first -1 ends them.
  void accept(int32_t place, std::span<const TokenId> tokens, std::span<const TokenId> drafts = {});
  // For a ready place: its masks, at most max_masks of them, u32 [num_masks, num_words()]. They then count as used,
  // by this step. Mask i is valid if the first i drafts are accepted. There are fewer masks if the grammar rejects
  // a draft or ends with it. There are none where they would allow every token: in a thinking section, unless a
  // draft ends it.
  std::span<const uint32_t> use_masks(int32_t place, int32_t max_masks, int64_t step);
  // Valid in any state.
  void remove(int32_t place);
  // Does nothing for a request without a place.
  void remove_request(uint64_t request);

  [[nodiscard]] State state(int32_t place) const;
  // Whether the request has a place that a worker is busy with.
  [[nodiscard]] bool is_busy(uint64_t request) const;
  [[nodiscard]] uint64_t request_of(int32_t place) const {
    return places_[static_cast<size_t>(place)]->request;
  }
  [[nodiscard]] int64_t num_words() const { return num_words_; }

  // Appends the places that ended or failed since the last call and still exist.
  void take_finished(std::vector<int32_t>& places);
  // Sets where wait() waits and workers notify: the engine thread's only wait, which other events may end as well.
  // Call before the first place; without it, this has a wake-up of its own.
  void share_wake_up(WakeUp& wake_up) { wake_up_ = &wake_up; }
  // Blocks until a worker has finished a place, or another thread has notified, since the last wait; for at most
  // `longest`.
  void wait(std::chrono::microseconds longest);
  [[nodiscard]] Stats stats() const;
  [[nodiscard]] const MaskLog& fills() const { return fills_; }

 private:
  struct Place {
    uint64_t request = 0;
    int32_t number = 0;
    std::optional<Grammar> grammar;  // until a worker has made the matcher
    std::optional<GrammarMatcher> matcher;
    std::vector<TokenId> tokens;    // to process before masks are filled
    std::vector<TokenId> drafts;    // draft tokens after them
    std::vector<uint32_t> words;    // [1 + max_drafts, num_words]
    int32_t num_masks = 0;          // filled
    bool is_free = false;           // they forbid nothing
    int32_t num_used = 0;           // by the step
    int64_t step = 0;               // that used the last masks
    State state = State::kWaiting;  // under the mutex, like the next
    bool removed = false;  // the worker that pops it frees it, since freeing a parser takes time
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
  std::deque<Place*> running_;       // for workers: places whose requests wait for their next token
  std::deque<Place*> others_;        // after these: first masks, and places to free
  std::vector<int32_t> finished_;
  bool closed_ = false;
  Stats stats_;
  MaskLog fills_;
  std::vector<std::thread> threads_;
};

}  // namespace warprow
