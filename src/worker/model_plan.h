// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "comm/rank_place.h"
#include "config/resolve.h"
#include "device/device.h"
#include "kv/kv_spec.h"
#include "layers/parameter_loader.h"
#include "models/decoder.h"
#include "models/decoder_spec.h"
#include "models/pooler.h"
#include "runner/model_runner.h"
#include "weights/checkpoint.h"
#include "worker/device_policy.h"
#include "worker/draft_plan.h"
#include "worker/machine_facts.h"
#include "worker/memory_plan.h"

#include <cstdint>
#include <memory>
#include <optional>

namespace warprow {

// What a rank does with the model in a step; it selects the runner (worker/rank.cpp).
enum class Stage : uint8_t {
  kGenerate  // draw tokens, or yield the vectors of a pooling model
};

// A rank's part of a model that is supported and fits: everything decided, nothing loaded. Reads headers only. Bytes
// are those of this rank.
struct ModelPlan {
  std::unique_ptr<Checkpoint> checkpoint;
  ResolvedConfig config;
  DeviceFacts device;  // the device that it is planned for
  Stage stage = Stage::kGenerate;
  RankPlace place;
  DecoderSpec spec;                  // of the whole model
  std::unique_ptr<Pooler> pooler;    // null: the model generates
  std::unique_ptr<DraftPlan> draft;  // null: no model drafts
  double draft_forward = 0;          // SchedulerConfig::draft_forward
  KvPlan kv;
  int32_t most_kv_layers = 0;  // of a group, in the stage with the most: it sizes the cache of all
  KvCacheSpec kv_cache;
  DecoderOptions decoder;
  RunnerOptions runner;
  MemoryPlan memory;
  bool pages_are_given = false;       // by the caller's RunnerOptions
  bool kv_takes_rest = false;         // the cache takes what everything else leaves
  bool max_model_len_is_set = false;  // set by the user, so not reduced to fit the cache

  [[nodiscard]] LoadFormat load_format() const {
    return config.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  }
};

// Sizes that are supported.
Result<void> check_parallel_sizes(const EngineConfig& settings);

// Errors: a model that cannot be found, read or supported; settings that contradict each other or the
// model; too little memory, with the numbers.
// machine: shared by all ranks where they run on CPUs.
// runner: drafts and features beside those of the settings; plan_model decides the rest of it.
// place: nullopt: the first rank of the settings' parallel sizes.
Result<ModelPlan> plan_model(const EngineConfig& settings,
                             const MachineFacts& machine,
                             const RunnerOptions& runner = {},
                             const std::optional<RankPlace>& place = std::nullopt);

}  // namespace warprow
