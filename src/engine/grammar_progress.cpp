// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar_progress.h"

#include "base/check.h"
#include "base/log.h"

#include <algorithm>
#include <utility>

namespace warprow {

using Clock = std::chrono::steady_clock;

namespace {

bool allows(std::span<const uint32_t> mask, TokenId token) {
  const auto bit = static_cast<size_t>(token);
  return token >= 0 && bit / 32 < mask.size() && (mask[bit / 32] >> (bit % 32) & 1U) != 0;
}

bool allows_nothing(std::span<const uint32_t> mask) {
  return std::ranges::all_of(mask, [](uint32_t word) { return word == 0; });
}

}  // namespace

GrammarProgress::GrammarProgress(int32_t vocab_size,
                                 int32_t num_threads,
                                 std::chrono::microseconds delay,
                                 int32_t max_drafts)
    : num_words_((vocab_size + 31) / 32),
      num_threads_(num_threads),
      delay_(delay),
      max_drafts_(max_drafts) {}

GrammarProgress::~GrammarProgress() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  work_.notify_all();
  closing_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

int32_t GrammarProgress::add(uint64_t request, const Grammar& grammar) {
  if (free_.empty()) {
    free_.push_back(static_cast<int32_t>(places_.size()));
    places_.emplace_back();
  }
  auto place = std::make_unique<Place>();
  place->request = request;
  place->number = free_.back();
  place->grammar = grammar;
  const auto max_drafts = static_cast<size_t>(max_drafts_);
  place->words.resize((1 + max_drafts) * static_cast<size_t>(num_words_));
  place->tokens.reserve(1 + max_drafts);
  place->drafts.reserve(max_drafts);
  free_.pop_back();
  place_of_.emplace(request, place->number);
  while (std::ssize(threads_) < num_threads_) {
    threads_.emplace_back([this, worker = static_cast<int32_t>(threads_.size())] { run(worker); });
  }
  const int32_t number = place->number;
  places_[static_cast<size_t>(number)] = std::move(place);
  return number;
}

void GrammarProgress::start(int32_t number) {
  if (state(number) == State::kWaiting) {
    begin(*places_[static_cast<size_t>(number)]);
  }
}

void GrammarProgress::accept(int32_t number,
                             std::span<const TokenId> tokens,
                             std::span<const TokenId> drafts) {
  Place& place = *places_[static_cast<size_t>(number)];
  WR_CHECK(state(number) == State::kStale && std::ssize(tokens) <= place.num_used,
           "a token without a mask");
  WR_CHECK_LE(std::ssize(drafts), max_drafts_);
  place.tokens.assign(tokens.begin(), tokens.end());
  place.drafts.assign(drafts.begin(), drafts.end());
  begin(place);
}

// Hands the place to the workers.
void GrammarProgress::begin(Place& place) {
  {
    const std::scoped_lock lock(mutex_);
    place.state = State::kBusy;
    push(&place);
  }
  work_.notify_one();
}

// Under the mutex, like pop().
void GrammarProgress::push(Place* place) {
  (!place->tokens.empty() && !place->removed ? running_ : others_).push_back(place);
}

// Null if there is none. Running requests go first: the first masks of a batch of new requests take long, since
// each needs its own parser.
GrammarProgress::Place* GrammarProgress::pop() {
  std::deque<Place*>& queue = running_.empty() ? others_ : running_;
  if (queue.empty()) {
    return nullptr;
  }
  Place* const place = queue.front();
  queue.pop_front();
  return place;
}

std::span<const uint32_t> GrammarProgress::use_masks(int32_t number,
                                                     int32_t max_masks,
                                                     int64_t step) {
  Place& place = *places_[static_cast<size_t>(number)];
  const std::scoped_lock lock(mutex_);
  WR_CHECK(place.state == State::kReady);
  place.state = State::kStale;
  place.step = step;
  place.num_used = std::min(max_masks, place.num_masks);
  const bool needs_none = place.is_free && place.num_used == max_masks;
  const int32_t num_given = needs_none ? 0 : place.num_used;
  return std::span(place.words).first(static_cast<size_t>(num_given * num_words_));
}

void GrammarProgress::remove(int32_t number) {
  std::unique_ptr<Place>& owner = places_[static_cast<size_t>(number)];
  place_of_.erase(owner->request);
  free_.push_back(number);
  const std::scoped_lock lock(mutex_);
  std::erase(finished_, number);
  owner->removed = true;
  const bool with_worker = owner->state == State::kBusy;
  Place* const place = owner.release();  // owned by the worker that has it or pops it next
  if (!with_worker) {
    push(place);
    work_.notify_one();
  }
}

void GrammarProgress::remove_request(uint64_t request) {
  if (const auto it = place_of_.find(request); it != place_of_.end()) {
    remove(it->second);
  }
}

GrammarProgress::State GrammarProgress::state(int32_t place) const {
  const std::scoped_lock lock(mutex_);
  return places_[static_cast<size_t>(place)]->state;
}

bool GrammarProgress::is_busy(uint64_t request) const {
  const auto it = place_of_.find(request);
  return it != place_of_.end() && state(it->second) == State::kBusy;
}

void GrammarProgress::take_finished(std::vector<int32_t>& places) {
  const std::scoped_lock lock(mutex_);
  places.insert(places.end(), finished_.begin(), finished_.end());
  finished_.clear();
}

void GrammarProgress::wait(std::chrono::microseconds longest) {
  wake_up_->wait_until(Clock::now() + longest);
}

GrammarProgress::Stats GrammarProgress::stats() const {
  const std::scoped_lock lock(mutex_);
  return stats_;
}

// A worker thread's body. It frees removed places here, outside the lock.
void GrammarProgress::run(int32_t worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    Place* place = nullptr;
    work_.wait(lock, [&] { return (place = pop()) != nullptr || closed_; });
    if (place == nullptr) {
      return;
    }
    const Clock::time_point begun = Clock::now();
    if (delay_.count() > 0) {
      closing_.wait_for(lock, delay_, [this] { return closed_; });
    }
    const bool wanted = !place->removed && !closed_;
    lock.unlock();
    const State state = wanted ? advance(*place) : State::kFailed;
    const Clock::time_point done = Clock::now();
    const bool has_masks = state == State::kReady && !place->is_free;
    if (has_masks) {
      fills_.add({place->request, place->step, worker, begun, done});
    }
    lock.lock();
    stats_.num_masks += has_masks ? place->num_masks : 0;
    stats_.busy_us += (done - begun) / std::chrono::microseconds(1);
    if (place->removed) {
      lock.unlock();
      const std::unique_ptr<Place> freed(place);
      lock.lock();
    } else if (wanted) {
      finish(*place, state);
    }
  }
}

// Under the mutex.
void GrammarProgress::finish(Place& place, State state) {
  place.state = state;
  if (state != State::kReady) {
    finished_.push_back(place.number);
  }
  wake_up_->notify();
}

GrammarProgress::State GrammarProgress::advance(Place& place) const {
  if (!place.matcher) {
    place.matcher.emplace(*place.grammar);
    place.grammar.reset();
  }
  Result<void> done;
  for (const TokenId token : place.tokens) {
    if (done) {
      done = place.matcher->accept(token);
    }
  }
  place.tokens.clear();
  if (done) {
    done = place.matcher->fill_mask(mask_of(place, 0));
  }
  if (!done) {
    WR_LOG_WARN("request {}: its grammar ends it: {}", place.request, done.error().message);
    return State::kFailed;
  }
  if (place.matcher->is_stopped()) {
    return State::kEnded;
  }
  if (allows_nothing(mask_of(place, 0))) {
    return State::kStuck;
  }
  place.num_masks = 1;
  place.is_free = place.matcher->is_free();
  if (!place.drafts.empty() && allows(mask_of(place, 0), place.drafts.front())) {
    look_ahead(place);
  }
  return State::kReady;
}

// Fills masks after drafts, up to a draft that the grammar rejects or that leaves no token to draw. A failure here
// is ignored, since the drafts may not be accepted.
void GrammarProgress::look_ahead(Place& place) const {
  GrammarMatcher ahead = place.matcher->fork();
  for (const TokenId draft : place.drafts) {
    if (!allows(mask_of(place, place.num_masks - 1), draft) || !ahead.accept(draft)) {
      return;
    }
    const std::span<uint32_t> mask = mask_of(place, place.num_masks);
    if (!ahead.fill_mask(mask) || ahead.is_stopped() || allows_nothing(mask)) {
      return;
    }
    ++place.num_masks;
    place.is_free = place.is_free && ahead.is_free();
  }
}

}  // namespace warprow
