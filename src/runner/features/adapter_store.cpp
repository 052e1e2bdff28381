// SPDX-License-Identifier: Apache-2.0
#include "runner/features/adapter_store.h"

#include "base/check.h"
#include "models/peft_adapter.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace warprow {

AdapterStore::AdapterStore(Device& device,
                           std::span<const LinearSite> sites,
                           std::vector<std::string> elsewhere,
                           const BankLayout& layout,
                           int32_t max_rank,
                           int32_t max_adapters)
    : sites_(sites), elsewhere_(std::move(elsewhere)), layout_(layout), max_rank_(max_rank) {
  for (int32_t i = 0; i < max_adapters; ++i) {
    places_.push_back(std::make_unique<Place>());
    places_.back()->memory = device.make_pinned(static_cast<size_t>(layout.bytes));
  }
}

AdapterStore::Place* AdapterStore::find(int32_t id) {
  const auto found = std::ranges::find_if(
      places_, [id](const auto& place) { return place->state != State::kFree && place->id == id; });
  return found == places_.end() ? nullptr : found->get();
}

std::string AdapterStore::load(int32_t id, const std::string& dir, uint64_t steps_taken) {
  if (const Place* begun = find(id)) {
    return state_of(*begun);
  }
  const auto found = std::ranges::find_if(places_, [steps_taken](const auto& place) {
    return place->state == State::kFree && place->last_step <= steps_taken;
  });
  if (found == places_.end()) {
    return "busy";
  }
  Place& place = **found;
  place.id = id;
  place.state = State::kLoading;
  place.reader = std::jthread([this, &place, dir] {
    Result<void> read;
    try {
      read = read_peft_adapter(dir, sites_, elsewhere_, layout_, max_rank_, place.memory.data());
    } catch (const std::exception& failure) {
      read = fail(ErrorCode::kInternal, fmt::format("{}: {}", dir, failure.what()));
    }
    if (!read) {
      place.error = read.error();
    }
    place.state = read ? State::kReady : State::kFailed;
  });
  return "loading";
}

std::string AdapterStore::state_of(const Place& place) {
  const State state = place.state;
  if (state != State::kFailed) {
    return state == State::kReady ? "ready" : "loading";
  }
  return fmt::format("error {} {}", static_cast<int>(place.error.code), place.error.message);
}

void AdapterStore::remove(int32_t id) {
  if (Place* place = find(id)) {
    place->reader = {};  // joins
    place->state = State::kFree;
    place->id = -1;
  }
}

const std::byte* AdapterStore::data_for(int32_t id, uint64_t step) {
  Place* place = find(id);
  WR_CHECK(place != nullptr && place->state == State::kReady, "adapter {} is not loaded", id);
  place->last_step = step;
  return place->memory.data();
}

}  // namespace warprow
