// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "comm/host_group.h"
#include "device/arena.h"
#include "device/device.h"
#include "device/stream.h"
#include "models/eagle_head.h"
#include "models/model.h"
#include "runner/kv_cache.h"
#include "runner/runner.h"
#include "worker/model_plan.h"

#include <cstddef>
#include <memory>

namespace warprow {

// Capacities of a rank's arenas.
struct RankBytes {
  size_t weights = 0;
  size_t state = 0;
  size_t workspace = 0;
};

// What a rank computes and decides together with others. A rank alone has none of it.
struct RankComms {
  Communicator* tensor = nullptr;    // of RankPlace::tensor
  HostGroup* all = nullptr;          // all ranks of the engine
  Communicator* pipeline = nullptr;  // of RankPlace::pipeline
};

// What drafts for a rank's model: a model, a head, or neither.
struct Drafter {
  std::unique_ptr<Model> model;
  std::unique_ptr<EagleHead> head;

  void prepare_kernels() const {
    if (model != nullptr) {
      model->prepare_kernels();
    }
    if (head != nullptr) {
      head->prepare_kernels();
    }
  }
};

// Everything of a rank that lies on its device. build_rank is its only definition, for measuring on shapes and for
// loading.
//
// Owns: arenas, model, cache, runner; device and stream outlive it.
// Thread: the worker's.
struct Rank {
  Arena weights;
  Arena state;
  Arena workspace;
  std::unique_ptr<Model> model;
  Drafter drafter;                    // for `model`
  size_t drafter_bytes = 0;           // its weights
  std::unique_ptr<KvCache> kv_cache;  // null until give_kv_cache
  std::unique_ptr<Runner> runner;
};

// Builds all but the cache, whose size depends on what this took. Loads the weights. On shapes no communicators are
// needed. They outlive the rank. Throws StartupError.
Rank build_rank(const ModelPlan& plan,
                Device& device,
                Stream& stream,
                const RankBytes& bytes,
                const RankComms& comms = {});

// The model alone: constants and weights into `weights`, activations into `workspace`. Called again on an emptied
// arena, it puts everything at the same addresses. Throws StartupError.
std::unique_ptr<Model> load_model(const ModelPlan& plan,
                                  Stream& stream,
                                  Arena& weights,
                                  Arena& workspace,
                                  const RankComms& comms = {});

// The same of what drafts for it, behind it in the arenas.
Drafter load_drafter(const ModelPlan& plan,
                     Model& model,
                     Stream& stream,
                     Arena& weights,
                     Arena& workspace,
                     const RankComms& comms = {});

// Makes the cache as planned and binds it to the runner. Its content is undefined: warm-up writes into it, and
// zero_kv_cache must follow before the first request.
void give_kv_cache(Rank& rank, const ModelPlan& plan, Device& device);

// Kernels may multiply a masked value by zero, and 0 x NaN = NaN, so every cell must be zero before a request's
// first step. The device is idle; waits for it.
void zero_kv_cache(Stream& stream, KvCache& cache);

}  // namespace warprow
