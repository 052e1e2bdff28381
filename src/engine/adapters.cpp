// SPDX-License-Identifier: Apache-2.0
#include "engine/adapters.h"

#include "executor/rank_operations.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr size_t kMaxNameBytes = 256;

uint64_t seconds_now() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

Result<void> check_name(const std::string& name) {
  const bool printable =
      std::ranges::all_of(name, [](unsigned char c) { return c > ' ' && c < 127; });
  if (name.empty() || name.size() > kMaxNameBytes || !printable) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("lora_name: must have 1 to {} visible ASCII characters", kMaxNameBytes));
  }
  return {};
}

// The error in the answer "error CODE MESSAGE" of a rank. The message names the rank unless all ranks gave this answer.
Error error_of(const std::vector<std::string>& answers, size_t rank) {
  const std::string& answer = answers[rank];
  const size_t code = answer.find(' ') + 1;
  const size_t message = answer.find(' ', code) + 1;
  const bool all = std::ranges::count(answers, answer) == std::ssize(answers);
  return {static_cast<ErrorCode>(std::atoi(answer.c_str() + code)),
          (all ? "" : fmt::format("rank {}: ", rank)) + answer.substr(message)};
}

}  // namespace

Result<std::vector<LoadedAdapter>> parse_lora_modules(std::string_view text) {
  std::vector<LoadedAdapter> adapters;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--lora-modules: '{}' is not NAME=DIRECTORY", part));
    }
    LoadedAdapter& adapter = adapters.emplace_back();
    adapter.name = part.substr(0, equals);
    adapter.path = part.substr(equals + 1);
  }
  return adapters;
}

std::optional<LoadedAdapter> Adapters::find(std::string_view name) const {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(loaded_, name, &LoadedAdapter::name);
  return found == loaded_.end() ? std::nullopt : std::optional(*found);
}

std::vector<LoadedAdapter> Adapters::list() const {
  const std::scoped_lock lock(mutex_);
  return loaded_;
}

Result<int32_t> Adapters::begin(const std::string& name, const std::string& path) {
  if (facts_.max_loras == 0) {
    return fail(ErrorCode::kUnsupported, "adapters: the engine was started without --enable-lora");
  }
  if (auto valid = check_name(name); !valid) {
    return tl::unexpected(valid.error());
  }
  release_unused();
  const std::vector<LoadedAdapter> loaded = list();
  const auto is_named = [&](const LoadedAdapter& adapter) { return adapter.name == name; };
  if (std::ranges::any_of(loaded, is_named) || std::ranges::any_of(loading_, is_named)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("lora_name: '{}' is loaded already", name));
  }
  if (std::cmp_greater_equal(loaded.size() + loading_.size(), facts_.max_cpu_loras)) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("lora_name: '{}' would be more than --max-cpu-loras {} adapters; unload "
                    "one first",
                    name,
                    facts_.max_cpu_loras));
  }
  loading_.push_back({next_id_, name, path, 0});
  return next_id_++;
}

Result<bool> Adapters::poll(int32_t id) {
  const auto found = std::ranges::find(loading_, id, &LoadedAdapter::id);
  release_unused();
  const std::vector<std::string> states = executor_.call(LoadLora{id, found->path}).get();
  if (std::ranges::any_of(states, [](const auto& s) { return s == "busy" || s == "loading"; })) {
    return false;
  }
  LoadedAdapter adapter = std::move(*found);
  loading_.erase(found);
  const auto failed =
      std::ranges::find_if(states, [](const auto& state) { return state != "ready"; });
  if (failed != states.end()) {
    executor_.call(UnloadLora{id}).get();
    return tl::unexpected(error_of(states, static_cast<size_t>(failed - states.begin())));
  }
  adapter.loaded_at = seconds_now();
  scheduler_.adapters().add(id);
  const std::scoped_lock lock(mutex_);
  loaded_.push_back(std::move(adapter));
  return true;
}

Result<void> Adapters::unload(const std::string& name) {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = std::ranges::find(loaded_, name, &LoadedAdapter::name);
    if (found == loaded_.end()) {
      return fail(ErrorCode::kNotFound, fmt::format("lora_name: '{}' is not loaded", name));
    }
    leaving_.push_back(found->id);
    loaded_.erase(found);
  }
  release_unused();
  return {};
}

void Adapters::release_unused() {
  std::erase_if(leaving_, [this](int32_t id) {
    if (!scheduler_.adapters().remove(id)) {
      return false;
    }
    executor_.call(UnloadLora{id}).get();
    return true;
  });
}

}  // namespace warprow
