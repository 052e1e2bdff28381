// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_stream.h"
#include "runner/ops/runner_ops.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace warprow {
namespace {

// Runs the lanes of one team one after the other.
struct SerialTeam {
  template <typename F>
  void for_each(int64_t n, F f) const {
    for (int64_t i = 0; i < n; ++i) {
      f(i);
    }
  }
  template <typename F>
  int64_t max_of(int64_t n, int64_t enough, F f) const {
    int64_t best = 0;
    for (int64_t i = 0; i < n && best < enough; ++i) {
      best = std::max(best, f(i));
    }
    return best;
  }
};

std::vector<int64_t> shuffled(int64_t n, std::mt19937_64& random) {
  std::vector<int64_t> order(static_cast<size_t>(n > 0 ? n : 0));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// Runs the lanes in a random order: a functor that relies on lane order fails here as it would on a
// GPU.
struct ShuffledTeam {
  std::mt19937_64* random;
  template <typename F>
  void for_each(int64_t n, F f) const {
    for (const int64_t i : shuffled(n, *random)) {
      f(i);
    }
  }
  template <typename F>
  int64_t max_of(int64_t n, int64_t /*enough*/, F f) const {
    int64_t best = 0;
    for_each(n, [&](int64_t i) { best = std::max(best, f(i)); });
    return best;
  }
};

// Runs an item's body as a row with a team that shares nothing.
template <typename Op>
struct OneLane {
  Op op;
  template <typename Team>
  void operator()(int64_t i, const Team& /*team*/) const {
    op(i);
  }
};

struct CpuLauncher {
  bool shuffle = false;
  uint64_t seed = 0;

  template <typename Op>
  void for_rows(Stream& stream, const char* name, int64_t n, const Op& op) const {
    if (n <= 0) {
      return;
    }
    if (shuffle) {
      cpu::as_cpu(stream).launch(name, [op, n, seed = seed](cpu::ComputePool&) {
        std::mt19937_64 random(seed);
        for (const int64_t i : shuffled(n, random)) {
          op(i, ShuffledTeam{&random});
        }
      });
    } else {
      cpu::as_cpu(stream).launch(name, [op, n](cpu::ComputePool&) {
        for (int64_t i = 0; i < n; ++i) {
          op(i, SerialTeam{});
        }
      });
    }
  }

  template <typename Op>
  void for_teams(Stream& stream, const char* name, int64_t n, const Op& op) const {
    for_rows(stream, name, n, op);
  }

  template <typename Op>
  void for_items(Stream& stream, const char* name, int64_t n, const Op& op) const {
    for_rows(stream, name, n, OneLane<Op>{op});
  }
};

}  // namespace

std::unique_ptr<RunnerOps> make_runner_ops(Device& device) {
  if (device.shape_only()) {
    return std::make_unique<RunnerOpsImpl<CpuLauncher>>(CpuLauncher{});
  }
  if (device.facts().kind == DeviceKind::kCuda) {
    return make_cuda_runner_ops(device);
  }
  const auto& options = static_cast<cpu::CpuDevice&>(device).options();
  return std::make_unique<RunnerOpsImpl<CpuLauncher>>(CpuLauncher{options.shuffle, options.seed});
}

}  // namespace warprow
