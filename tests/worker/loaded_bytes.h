// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cpu/cpu_device.h"
#include "kv/kv_planner.h"
#include "models/decoder.h"

#include <cstdint>

namespace warprow::test {

// Loads a rank's weights on a CPU. Returns the bytes that were read from the files for them.
inline int64_t loaded_bytes(const Checkpoint& checkpoint,
                            const DecoderSpec& spec,
                            const KvPlan& kv,
                            const DecoderOptions& options) {
  constexpr size_t kRoom = size_t{64} << 20;
  const auto device = cpu::make_cpu_device({.num_threads = 1});
  const auto stream = device->make_stream();
  Arena weights = device->make_arena(ArenaPurpose::kWeights, kRoom);
  Arena workspace = device->make_arena(ArenaPurpose::kWorkspace, kRoom);
  int64_t bytes = 0;
  ParameterLoader loader(
      checkpoint, *stream, weights, LoadFormat::kAuto, DType::kBF16, [&](int64_t so_far) {
        bytes = so_far;
      });
  const Decoder decoder(spec, kv, options, loader, workspace);
  loader.finish();
  return bytes;
}

}  // namespace warprow::test
