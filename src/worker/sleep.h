// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/arena.h"
#include "device/device.h"
#include "device/stream.h"
#include "runner/kv_cache.h"

#include <cstdint>
#include <functional>
#include <string>

namespace warprow {

// Gives a worker's weights and KV cache back to the device and takes them again at the same
// addresses, so that views and captured graphs stay valid. State and activations stay.
//
// Level 1 keeps the weights in pinned host memory; level 2 drops them, and waking loads them again from the
// checkpoint. Both drop the cache, which comes back as zeros. Parts wake by tags, "weights" and "kv_cache".
//
// Owns: the host's copy of the weights, at level 1.
// Thread: the worker's. No step runs unless both parts are awake.
class SleepMode {
 public:
  // reload: fills the weights' arena from the checkpoint as at start; throws StartupError.
  SleepMode(
      Device& device, Stream& stream, Arena& weights, KvCache& cache, std::function<void()> reload);

  [[nodiscard]] bool awake() const { return weights_.resident() && cache_.arena().resident(); }

  // Both must be awake. Waits for the device. Returns one JSON object: level, weights_bytes and kv_bytes given
  // back, host_bytes taken for them, device_free_before and device_free_after (reported by the device; absent on a
  // CPU), seconds.
  std::string sleep(int level);
  // tags: "weights", "kv_cache", both separated by a comma, or empty for all that sleeps. Returns the same object
  // as sleep, with the bytes taken. Throws StartupError if the device has no memory left or the checkpoint cannot
  // be read; a part that was not woken stays asleep.
  std::string wake_up(const std::string& tags);

 private:
  void save_weights();
  void wake_weights();
  void wake_cache();

  Device& device_;
  Stream& stream_;
  Arena& weights_;
  KvCache& cache_;
  std::function<void()> reload_;
  PinnedBuffer saved_;
  bool weights_saved_ = false;
  int level_ = 0;
};

}  // namespace warprow
