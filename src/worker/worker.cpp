// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.h"

#include "base/check.h"
#include "base/log.h"
#include "device/shape_only.h"
#include "worker/kv_sizing.h"
#include "worker/warm_up.h"
#include "worker/weight_update.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// FNV-1a over the bytes.
uint64_t checksum(const std::byte* data, size_t bytes, uint64_t hash) {
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<uint64_t>(data[i])) * 0x100000001b3ULL;
  }
  return hash;
}

// The allowed difference between the device's figure and the plan: this, or half a percent.
constexpr int64_t kPlanSlack = int64_t{64} << 20;

int64_t capacity(const Arena& arena) { return static_cast<int64_t>(arena.capacity()); }

}  // namespace

Worker::Worker(ModelPlan plan, std::unique_ptr<Device> device, const RankComms& comms)
    : plan_(std::move(plan)),
      device_(std::move(device)),
      stream_(device_->make_stream()),
      comms_(comms) {
  rank_ = build_rank(plan_, *device_, *stream_, planned_bytes(), comms_);
  rank_.model->prepare_kernels();
  rank_.drafter.prepare_kernels();
  settle_kv_cache();
  give_kv_cache(rank_, plan_, *device_);
  check_plan();
  sleep_mode_ = std::make_unique<SleepMode>(
      *device_, *stream_, rank_.weights, *rank_.kv_cache, [this] { load_weights_again(); });
  add_operations();
  settle_kv_scales();
  warm_up(*rank_.runner, warm_up_limits(), plan_.kv_cache);
  zero_kv_cache(*stream_, *rank_.kv_cache);
  measure_memory();
}

Worker::~Worker() { stream_->synchronize(); }

WarmUpLimits Worker::warm_up_limits() const {
  return {plan_.runner.max_num_seqs,
          plan_.runner.max_num_batched_tokens,
          plan_.runner.max_model_len,
          plan_.runner.token_pages,
          plan_.spec.vocab_size,
          device_policy(device_->facts().kind).loads_kernels};
}

// With --calculate-kv-scales, calculates the scales of an 8-bit cache. They depend on fixed tokens and not on requests,
// so they are the same in every run. Otherwise logs once how many layers have no scales.
void Worker::settle_kv_scales() {
  if (plan_.config.calculate_kv_scales) {
    run_calibration(*rank_.runner, *rank_.model, warm_up_limits(), plan_.kv_cache);
    const View<float, 1> scales = rank_.model->kv_scales();
    calculated_kv_scales_.resize(static_cast<size_t>(scales.shape[0]));
    stream_->copy_to_host(
        calculated_kv_scales_.data(), scales.data, calculated_kv_scales_.size() * sizeof(float));
    stream_->synchronize();
  } else if (plan_.memory.kv_layers_unscaled > 0 && plan_.place.rank == 0) {
    WR_LOG_WARN(
        "the checkpoint has no scales for the {} KV cache of {} of {} layers; theirs are 1 "
        "(--calculate-kv-scales finds others)",
        plan_.memory.kv_dtype,
        plan_.memory.kv_layers_unscaled,
        plan_.spec.num_layers);
  }
}

RankBytes Worker::planned_bytes() const {
  return {static_cast<size_t>(plan_.memory.weights_bytes),
          static_cast<size_t>(plan_.memory.state_bytes),
          static_cast<size_t>(plan_.memory.workspace_bytes)};
}

// Measures what driver and libraries took while the rank was built, and agrees on a cache that fits. Memory that
// another process took of the device meanwhile is counted with them.
void Worker::settle_kv_cache() {
  if (device_->facts().own_memory) {
    const int64_t taken = device_->facts().free_bytes - device_->free_bytes();
    plan_.memory.note_foreign(taken - capacity(rank_.weights) - capacity(rank_.state) -
                              capacity(rank_.workspace) - plan_.memory.comm_bytes);
  }
  value_or_throw(take_terms(plan_, agree(all_offers())));
}

// What every rank offers, by rank.
std::vector<RankTerms> Worker::all_offers() const {
  const RankTerms mine = offer(plan_);
  if (comms_.all == nullptr) {
    return {mine};
  }
  std::vector<RankTerms> offers;
  for (const std::string& text : comms_.all->exchange(encode(mine))) {
    offers.push_back(decode_terms(text));
  }
  return offers;
}

// Checks that use equals the plan.
void Worker::check_plan() const {
  for (const Arena* arena : {&rank_.weights, &rank_.state, &rank_.workspace}) {
    WR_CHECK(arena->high_water() == arena->capacity(),
             "{} arena: {} bytes planned, {} used",
             arena_name(arena->purpose()),
             arena->capacity(),
             arena->high_water());
  }
  WR_CHECK(device_->pinned_bytes() == plan_.memory.pinned_bytes,
           "pinned memory: {} bytes planned, {} used",
           plan_.memory.pinned_bytes,
           device_->pinned_bytes());
}

// Compares what start-up took with the plan, which reserves room for graphs that are captured later.
void Worker::measure_memory() {
  if (!device_->facts().own_memory) {
    return;
  }
  MemoryPlan& plan = plan_.memory;
  plan.measured_bytes = device_->facts().free_bytes - device_->free_bytes();
  const int64_t planned = plan.planned_bytes() - plan.graph_bytes;
  WR_LOG_INFO(
      "start-up took {} bytes of the device, {} were planned for it", plan.measured_bytes, planned);
  if (std::abs(plan.measured_bytes - planned) > std::max(kPlanSlack, planned / 200)) {
    WR_LOG_WARN(
        "start-up took {} bytes of the device where {} were planned; does something else use it?",
        plan.measured_bytes,
        planned);
  }
}

// Runs the same code that loaded them, in the same order and so at the same addresses. Activations keep their
// addresses.
void Worker::load_weights_again() {
  rank_.weights.reset();
  const auto shapes = make_shape_only_device(device_->facts());
  Arena no_activations = shapes->make_arena(ArenaPurpose::kWorkspace, rank_.workspace.capacity());
  const auto model = load_model(plan_, *stream_, rank_.weights, no_activations, comms_);
  load_drafter(plan_, *model, *stream_, rank_.weights, no_activations, comms_);
  if (!calculated_kv_scales_.empty()) {  // they stay as they are until the process ends
    stream_->copy_to_device(rank_.model->kv_scales().data,
                            calculated_kv_scales_.data(),
                            calculated_kv_scales_.size() * sizeof(float));
    stream_->synchronize();
  }
  WR_CHECK_EQ(rank_.weights.used(), rank_.weights.capacity());
}

// Later reloads read that checkpoint too.
void Worker::load_other_weights(const std::string& model) {
  plan_.checkpoint = value_or_throw(open_same_model(plan_, model));
  stream_->synchronize();
  load_weights_again();
}

// Reads in pieces, so that a large cache does not need a copy of its size.
std::string Worker::state_checksum() {
  uint64_t hash = 0xcbf29ce484222325ULL;
  std::vector<std::byte> piece(size_t{1} << 20);
  std::vector<std::span<const std::byte>> parts = rank_.runner->lasting_state();
  const Arena& cache = rank_.kv_cache->arena();
  parts.emplace_back(cache.base(), cache.used());
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      const size_t bytes = std::min(piece.size(), part.size());
      stream_->copy_to_host(piece.data(), part.data(), bytes);
      stream_->synchronize();
      hash = checksum(piece.data(), bytes, hash);
      part = part.subspan(bytes);
    }
  }
  return fmt::format("{:016x}", hash);
}

void Worker::add_operations() {
  Operations& operations = rank_.runner->operations();
  operations.add("check_health", [](const std::string&) { return std::string("ok"); });
  operations.add("memory_plan", [this](const std::string& form) {
    return form == "text" ? format_plan(plan_.memory) : plan_json(plan_.memory);
  });
  operations.add("state_checksum", [this](const std::string&) { return state_checksum(); });
  operations.add("sleep",
                 [this](const std::string& level) { return sleep_mode_->sleep(std::stoi(level)); });
  operations.add("wake_up", [this](const std::string& tags) { return sleep_mode_->wake_up(tags); });
  operations.add("check_weights", [this](const std::string& model) {
    (void)value_or_throw(open_same_model(plan_, model));
    return std::string("ok");
  });
  operations.add("load_weights", [this](const std::string& model) {
    load_other_weights(model);
    return std::string("ok");
  });
}

}  // namespace warprow
