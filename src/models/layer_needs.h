// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_need.h"
#include "base/dtype.h"
#include "kv/kv_planner.h"
#include "models/decoder_spec.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace warprow {

// What the layers of one decoder need of cache and attention, read from its spec.

// What a run sets for every layer's cache.
struct KvOptions {
  DType dtype = DType::kBF16;
  int32_t block_size = 16;
  int32_t kernel_block_size = 16;
  KvLayout layout{};
  // An encoder's heads get the least of these sizes that holds them; empty, or none does: their own.
  std::span<const int32_t> encoder_head_dims = {};
};

// By layer. A layer that reads another's keys and values has that layer's need. backends: each layer's attention backend;
// empty: auto for all.
std::vector<KvNeed> kv_needs(const DecoderSpec& spec,
                             const KvOptions& options,
                             std::span<const std::string> backends = {});

// The plan of a rank with these models. A layer that reads another's keys and values has that one's place. backends: of
// the first model's layers; those of the others are chosen. All layers of an encoder have one place: a prompt is one step,
// so a layer's keys and values are not needed behind it.
Result<KvPlan> plan_kv(std::span<const DecoderSpec* const> models,
                       const KvOptions& options,
                       std::span<const std::string> backends = {});
// The same with one model.
Result<KvPlan> plan_kv(const DecoderSpec& spec,
                       const KvOptions& options,
                       std::span<const std::string> backends = {});

// What the layers of a KV group need of their attention backend, one need per layer. `layers`: those of the rank's
// model; `common`: the fields that do not differ by layer.
std::vector<AttentionNeed> attention_needs(std::span<const AttentionSpec> layers,
                                           const KvPlan& plan,
                                           int32_t group,
                                           const AttentionNeed& common);

}  // namespace warprow
