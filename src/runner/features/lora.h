// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// LoRA adapters: rows whose NewRow::adapter is not negative add the products of their adapter to those of the model's linear
// layers (layers/linear_delta.h). The device has a bank for each of max_loras adapters; a row whose adapter has no bank takes
// the one that was used longest ago, which is copied before the row's first step. At most max_loras adapters have live rows
// (SchedulerConfig::max_loras). A step in which no row has an adapter enqueues nothing.
//
// Operations, whose id is any number that no loaded adapter has:
//  load_lora "ID DIR": AdapterStore::load.
//  unload_lora "ID": no live row has the adapter. It may be one that failed to load.
//
// With several ranks, each has its own part of every adapter's matrices (models/delta_sites.h), in its own banks. All
// ranks assign banks in the same way, since they get the same rows. Where a layer's sum is one over ranks, a rank adds
// the product of its part of A to its part of the sum: no rank waits for another.
//
// Throws StartupError for a model whose sizes the kernels do not take, or without layers that take adapters.
std::unique_ptr<RunnerFeature> make_lora(const RunnerParts& parts, const LoraOptions& options);

}  // namespace warprow
