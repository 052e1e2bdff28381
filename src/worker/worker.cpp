// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.h"

#include "base/check.h"
#include "base/log.h"
#include "device/shape_only.h"
#include "layers/parameter_loader.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// FNV-1a over 64-bit words and the tail.
uint64_t checksum(const std::byte* data, size_t bytes, uint64_t hash) {
  for (size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<uint64_t>(data[i])) * 0x100000001b3ULL;
  }
  return hash;
}

// How far the device's figure may be from the plan: this, or half a percent.
constexpr int64_t kPlanSlack = int64_t{64} << 20;
// Tokens of the warm-up step: enough to run every kernel once.
constexpr int32_t kWarmUpToks = 8;

}  // namespace

Worker::Worker(ModelPlan plan, std::unique_ptr<Device> device)
    : plan_(std::move(plan)),
      device_(std::move(device)),
      stream_(device_->make_stream()),
      weights_(device_->make_arena(ArenaPurpose::kWeights,
                                   static_cast<size_t>(plan_.memory.weights_bytes))),
      state_(
          device_->make_arena(ArenaPurpose::kState, static_cast<size_t>(plan_.memory.state_bytes))),
      workspace_(device_->make_arena(ArenaPurpose::kWorkspace,
                                     static_cast<size_t>(plan_.memory.workspace_bytes))) {
  ParameterLoader loader(*plan_.checkpoint, *stream_, weights_, plan_.load_format());
  model_ = std::make_unique<Decoder>(plan_.spec, plan_.kv, plan_.decoder, loader, workspace_);
  const auto kv_bytes = static_cast<size_t>(KvCache::planned_bytes(plan_.kv_cache));
  kv_cache_ = std::make_unique<KvCache>(
      device_->make_arena(ArenaPurpose::kKvCache, kv_bytes), plan_.kv_cache, plan_.kv);
  runner_ = std::make_unique<ModelRunner>(
      *device_, *stream_, *model_, plan_.kv, RunnerArenas{&state_, &workspace_}, plan_.runner);
  runner_->bind_kv_cache(kv_cache_.get());
  loader.finish();
  if (device_->facts().kind == DeviceKind::kCuda) {
    // Kernels may weigh a masked value by zero, which only a finite one survives.
    const Arena& cache = kv_cache_->arena();
    stream_->fill(cache.base(), 0, cache.capacity());
    stream_->synchronize();
    model_->prepare_kernels();
  }
  for (const Arena* arena : {&weights_, &state_, &workspace_}) {
    WR_CHECK(arena->high_water() == arena->capacity(),
             "{} arena: {} bytes planned, {} used",
             arena_name(arena->purpose()),
             arena->capacity(),
             arena->high_water());
  }
  sleep_mode_ = std::make_unique<SleepMode>(
      *device_, *stream_, weights_, *kv_cache_, [this] { load_weights_again(); });
  warm_up();
  measure_memory();
}

Worker::~Worker() { stream_->synchronize(); }

// An empty step with padding tokens, down the same path as every other step: it changes no state.
void Worker::warm_up() {
  SchedulerOutput step;
  step.data_parallel.num_toks_padded = std::min(kWarmUpToks, plan_.runner.max_num_batched_tokens);
  runner_->execute_model(step);
  runner_->sample_tokens(nullptr);
  ModelRunnerOutput output;
  runner_->take_output(output);
  WR_CHECK(output.rows.empty());
}

// Compares what start-up took with the plan, which sets room for graphs aside that are captured later.
void Worker::measure_memory() {
  if (device_->facts().kind != DeviceKind::kCuda) {
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

// The very code that loaded them, in the same order and so at the same addresses; activations are
// where they were.
void Worker::load_weights_again() {
  weights_.reset();
  ParameterLoader loader(*plan_.checkpoint, *stream_, weights_, plan_.load_format());
  const auto shapes = make_shape_only_device(device_->facts());
  Arena no_activations = shapes->make_arena(ArenaPurpose::kWorkspace, workspace_.capacity());
  const Decoder again(plan_.spec, plan_.kv, plan_.decoder, loader, no_activations);
  loader.finish();
  WR_CHECK_EQ(weights_.used(), weights_.capacity());
}

std::string Worker::state_checksum() {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const std::vector<RowState> rows = runner_->read_row_states();
  hash = checksum(
      reinterpret_cast<const std::byte*>(rows.data()), rows.size() * sizeof(RowState), hash);
  // In pieces, so that a large cache does not need a copy of its size.
  std::vector<std::byte> piece(size_t{1} << 20);
  const Arena& cache = kv_cache_->arena();
  for (size_t at = 0; at < cache.used(); at += piece.size()) {
    const size_t bytes = std::min(piece.size(), cache.used() - at);
    stream_->copy_to_host(piece.data(), cache.base() + at, bytes);
    stream_->synchronize();
    hash = checksum(piece.data(), bytes, hash);
  }
  return fmt::format("{:016x}", hash);
}

std::optional<std::string> Worker::call(const std::string& operation, const std::string& argument) {
  if (operation == "check_health") {
    return "ok";
  }
  if (operation == "memory_plan") {
    return argument == "text" ? format_plan(plan_.memory) : plan_json(plan_.memory);
  }
  if (operation == "attention_backends") {
    return runner_->attention_backends();
  }
  if (operation == "state_checksum") {
    return state_checksum();
  }
  if (operation == "sleep") {
    return sleep_mode_->sleep(std::stoi(argument));
  }
  if (operation == "wake_up") {
    return sleep_mode_->wake_up(argument);
  }
  return runner_->operations().call(operation, argument);
}

}  // namespace warprow
