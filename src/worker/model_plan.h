// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/resolve.h"
#include "device/device.h"
#include "kv/kv_spec.h"
#include "layers/parameter_loader.h"
#include "models/decoder.h"
#include "models/decoder_spec.h"
#include "runner/model_runner.h"
#include "weights/checkpoint.h"
#include "worker/memory_plan.h"

#include <memory>
#include <string>

namespace warprow {

// A model that is understood and fits: everything decided, nothing loaded. Reads headers only.
struct ModelPlan {
  std::unique_ptr<Checkpoint> checkpoint;
  ResolvedConfig config;
  DecoderSpec spec;
  KvPlan kv;
  KvCacheSpec kv_cache;
  DecoderOptions decoder;
  RunnerOptions runner;
  MemoryPlan memory;

  [[nodiscard]] LoadFormat load_format() const {
    return config.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  }
};

// What the planner must know of the machine.
struct MachineFacts {
  int32_t usable_cores = 1;
  int64_t usable_memory_bytes = 0;
  DeviceFacts gpu;          // kind kCuda when there is one
  std::string why_no_cuda;  // when there is none
};
// What is here, for a wish of EngineConfig::device: "cpu" does not look for a GPU, and the name of a
// known GPU stands in for one.
MachineFacts this_machine(const std::string& device = "cpu");
HostFacts host_facts(const MachineFacts& machine);

// Errors: a model that cannot be found, read or supported; wishes that contradict each other or the
// model; too little memory, with the numbers.
// runner: what no wish says, drafts and features; the rest of it is decided here.
Result<ModelPlan> plan_model(const EngineConfig& wishes,
                             const MachineFacts& machine,
                             const RunnerOptions& runner = {});

}  // namespace warprow
