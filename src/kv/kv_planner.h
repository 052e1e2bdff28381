// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "kv/kv_need.h"
#include "kv/kv_spec.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace warprow {

inline constexpr int32_t kOtherStage = -1;

// Which KV group a layer belongs to, and its place there; kOtherStage: it has no cache on this rank.
struct LayerKvPlace {
  int32_t group = 0;
  int32_t index = 0;

  bool operator==(const LayerKvPlace&) const = default;
};

// The KV groups of a rank: one pool for all of its models.
//
// Invariant: every group has the same number of places for layers, so that a block of the pool has
// the same layout whichever group takes it; at most kMaxKvGroups groups.
struct KvPlan {
  std::vector<KvGroupSpec> groups;
  std::vector<std::string> backends;  // by group: name of its attention backend, or auto
  std::vector<int32_t> num_heads;     // by group: query heads of each of its layers
  std::vector<LayerKvPlace> layers;   // model after model, each in layer order
  std::vector<int32_t> first_layer;   // by model: where its layers begin in `layers`
};

// Groups the needs of all models of a rank: `models` lists each model's layers.
//
// Groups: layers of equal needs, also of different models, form a class. Each class is cut into groups, all of one size:
// the number of layers of the smallest class, or of the largest class if that is less than 1.5 times as many. The size
// grows while more than kMaxKvGroups groups would result. The waste is the empty places in the last group of each class.
//
// Pages: a block of the pool has bytes for one page of each place, of the most expensive class. A cheaper class
// puts as many whole pages of its own into one, up to kMaxGrownPage tokens: with half the bytes per token its
// blocks are twice as long. The waste is the remainder of the division, less than half a page. Prefix hits end on
// the least common multiple of the block sizes.
//
// States: a state is cut into pages as large as those of attention, each a block of the pool, so that it needs no memory of
// its own kind and hits of attention stay as fine as its blocks.
//
// Errors: a kind without a manager (cross); states alone, or with keys and values apart; an invalid shape; keys and
// values of different width; a page that its kernel blocks do not divide; more than kMaxKvGroups classes.
Result<KvPlan> plan_kv(std::span<const std::vector<KvNeed>> models, const KvLayout& layout);

// The part of a stage of a pipeline that has the layers [first, last) of the plan. Its groups are those of the whole plan,
// because all stages have the block tables of one scheduler; a group may be empty. Layers of a class are dealt evenly to
// its groups, so that a block has as few places as possible.
KvPlan stage_of(const KvPlan& plan, int32_t first, int32_t last);

inline constexpr int32_t kMaxGrownPage = 128;  // tokens; longer blocks only if a need has them

}  // namespace warprow
