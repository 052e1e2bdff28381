// SPDX-License-Identifier: Apache-2.0
// What batch invariance costs the linear operations of a model.
//   batch_invariant_cuda_bench [steps] [products] [plans] [heads] [Qwen3-0.6B] [Qwen3-8B] [qkv] [o] [gate_up] [down] [head]
// Without arguments: steps and products, both models. steps: all linears of a step, with their norms and gates, default
// against batch-invariant. products: each operation of a layer alone. plans: other plans of the batch-invariant kernels,
// by the number of parts of k. heads: the head with its logits and with the largest of them alone. Of products
// and plans only the named operations, if one is named.
#include "kernels/linear/cublaslt/cublaslt.h"
#include "kernels/linear/large_m/sm90_large_gemm.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "kernels/linear/small_m/sm90_maxima.h"
#include "kernels/linear/small_m/sm90_warp_gemm.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/cuda_timing.h"
#include "bench/kernels/model_products.h"

namespace warprow::cuda {
namespace {

using enum LinearEpilogue;

struct Product : ModelProduct {
  [[nodiscard]] LinearShape shape(bool invariant) const {
    return {n, k, y_f32 ? DType::kF32 : DType::kBF16, epilogue, false, invariant};
  }
  [[nodiscard]] int32_t outputs() const { return epilogue == kSwiGlu ? n / 2 : n; }
  [[nodiscard]] size_t bytes() const { return size_t{2} * n * k; }
};

// In the order of a layer; the head is last, without its norm. Norms follow the sum before them: that of qkv the sum of down.
struct Model {
  const char* name;
  int layers;
  std::vector<Product> products;

  explicit Model(const ModelProducts& of) : name(of.name), layers(of.layers) {
    for (const ModelProduct& product : of.products) {
      products.push_back({product});
    }
    products.back().norm = false;
  }
  [[nodiscard]] const Product& before(size_t i) const { return products[i == 0 ? 3 : i - 1]; }
  [[nodiscard]] const Product& behind(size_t i) const { return products[i == 3 ? 0 : i + 1]; }
};

constexpr int32_t kMaxRows = 8192;
constexpr int32_t kMaxHeadRows = 512;

// Room for up to kMaxRows rows of any product, and kMaxHeadRows of the head.
class Room {
 public:
  explicit Room(const Model& model) {
    for (const Product& p : model.products) {
      const size_t rows = p.n > 1 << 16 ? kMaxHeadRows : kMaxRows;
      inputs_ = std::max<size_t>(inputs_, rows * p.k);
      outputs_ = std::max<size_t>(outputs_, rows * p.n);
      hidden_ = p.epilogue == kAdd ? p.n : hidden_;
    }
    x_ = memory_.normal_bf16(inputs_);
    residual_ = memory_.allocate<float>(inputs_);
    y_ = memory_.allocate<float>(outputs_);
    product_ = memory_.allocate<uint16_t>(outputs_);
    normed_ = memory_.normal_bf16(inputs_);
    weight_ = memory_.allocate<float>(1 << 16);
    squares_ = memory_.allocate<float>(half_norm_squares(kMaxRows, hidden_));
    maxima_ = memory_.allocate<OutputMax>(outputs_ / kMaxOutputs);
    scratch_ = memory_.allocate<std::byte>(kLtWorkspaceBytes);
    WR_CUDA(cudaMemset(residual_, 0x3f, inputs_ * sizeof(float)));  // about 0.5
    WR_CUDA(cudaMemset(weight_, 0x3f, (size_t{1} << 16) * sizeof(float)));
    // Products of random numbers with such squares are about 1, as a gate's inputs are.
    const std::vector<float> squares(half_norm_squares(kMaxRows, hidden_), 64.0F * hidden_);
    WR_CUDA(cudaMemcpy(
        squares_, squares.data(), squares.size() * sizeof(float), cudaMemcpyHostToDevice));
    WR_CUDA(cudaMemset(y_, 0, outputs_ * sizeof(float)));
    half_.weight = make_view<const float>(weight_, hidden_);
    half_.rows = ActView(DType::kBF16, normed_, kMaxRows, hidden_);
    half_.squares = squares_;
  }

  // Runs an operation as a model does.
  void run(Stream& stream, const Model& model, size_t i, const void* w, int32_t m, bool invariant) {
    const Product& p = model.products[i];
    const DeviceFacts& device = stream.device().facts();
    const auto halved = [&](const Product& sum, const Product& behind) {
      return halved_norm_rows(device, sum.shape(invariant), behind.shape(invariant)).has(m);
    };
    LinearArgs args;
    args.x = p.norm ? ActView(DType::kF32, residual_, m, p.k)
                    : ActView(DType::kBF16, x_, kMaxRows, p.k).rows(0, m);
    if (p.norm) {
      args.norm_weight = make_view<const float>(weight_, p.k);
      args.half_norm = halved(model.before(i), p) ? &half_ : nullptr;
      args.normed = ActView(DType::kBF16, normed_, m, p.k);
    }
    if (p.epilogue == kAdd) {
      args.next_norm = halved(p, model.behind(i)) ? &half_ : nullptr;
    }
    args.y = ActView(p.y_f32 ? DType::kF32 : DType::kBF16, y_, m, p.outputs());
    args.product = ActView(DType::kBF16, product_, m, p.n);
    args.segments[0].w.kind = PackedKind::kBF16;
    args.segments[0].w.n = p.n;
    args.segments[0].w.k = p.k;
    args.segments[0].w.data = static_cast<const std::byte*>(w);
    args.num_segments = 1;
    args.epilogue = p.epilogue;
    args.batch_invariant = invariant;
    args.scratch = scratch_;
    cuda::linear(stream, args);
  }

  // The arguments of a batch-invariant kernel, with halves of norms if it has them.
  [[nodiscard]] Sm90GemmArgs args(const Product& p, const void* w, int32_t m, bool leaves) const {
    Sm90GemmArgs out;
    out.w = w;
    out.x = p.norm ? static_cast<const void*>(normed_) : x_;
    out.x_stride = p.k;
    out.x_capacity = kMaxRows;
    out.y = y_;
    out.y_stride = p.outputs();
    out.y_f32 = p.y_f32;
    out.epilogue = p.epilogue;
    out.squares = p.norm ? squares_ : nullptr;
    out.norm_eps = 1e-6F;
    if (leaves && p.epilogue == kAdd) {
      out.next_weight = weight_;
      out.next_x = normed_;
      out.next_squares = squares_;
    }
    out.maxima = maxima_;
    out.m = m;
    out.n = p.n;
    out.k = p.k;
    return out;
  }

 private:
  BenchBuffers memory_;
  size_t inputs_ = 0;
  size_t outputs_ = 0;
  int32_t hidden_ = 0;
  uint16_t* x_ = nullptr;
  float* residual_ = nullptr;
  float* y_ = nullptr;
  uint16_t* product_ = nullptr;
  uint16_t* normed_ = nullptr;
  float* weight_ = nullptr;
  float* squares_ = nullptr;
  OutputMax* maxima_ = nullptr;
  std::byte* scratch_ = nullptr;
  HalfNorm half_;
};

// Whether an operation is to be measured.
using Chosen = std::function<bool(const Product&)>;

// Copies of a weight, so that L2 does not serve the reads.
struct Weights {
  Weights(const Product& p, int wanted)
      : bytes(p.bytes()), count(wanted), data(memory.normal_bf16(bytes / 2 * wanted)) {}
  [[nodiscard]] const void* nth(int i) const {
    return reinterpret_cast<const std::byte*>(data) + bytes * (i % count);
  }
  size_t bytes;
  int count;
  BenchBuffers memory;
  uint16_t* data;
};

double limit_us(const Product& p, int32_t m) {
  const double flops = 2.0 * m * p.n * p.k;
  return std::max(p.bytes() / 4.8e12, flops / 790e12) * 1e6;
}

// Microseconds of all calls of one graph.
template <typename F>
double calls_us(Stream& stream, int calls, F launch_nth) {
  return graph_us(stream, calls, launch_nth, 5);
}

std::vector<int32_t> rows_of(const Product& p) {
  std::vector<int32_t> rows = {
      1, 2, 4, 8, 9, 16, 32, 40, 64, 72, 96, 128, 160, 192, 256, 300, 384, 512};
  if (p.n <= 1 << 16) {
    rows.insert(rows.end(), {1024, 2048, kMaxRows});
  }
  return rows;
}

void bench_products(Stream& stream, const Model& model, Room& room, const Chosen& chosen) {
  std::printf("%s: microseconds an operation, default and batch-invariant, and the limit\n",
              model.name);
  for (size_t i = 0; i < model.products.size(); ++i) {
    const Product& p = model.products[i];
    if (!chosen(p)) {
      continue;
    }
    const Weights w(p, copies_beyond_l2(p.bytes()));
    for (const int32_t m : rows_of(p)) {
      double us[2] = {};
      for (const bool invariant : {false, true}) {
        us[invariant ? 1 : 0] = calls_us(stream, std::min(w.count, m > 1024 ? 4 : 64), [&](int n) {
          room.run(stream, model, i, w.nth(n), m, invariant);
        });
      }
      std::printf("  %-8s m %4d  default %8.2f  invariant %8.2f  %+6.1f%%  limit %8.2f\n",
                  p.name,
                  m,
                  us[0],
                  us[1],
                  100.0 * (us[1] / us[0] - 1.0),
                  limit_us(p, m));
    }
  }
}

// The head with its logits, by the kernel that a model takes, and with the largest of them alone, by every kernel for that.
void bench_heads(Stream& stream, const Model& model, Room& room) {
  std::printf("%s: microseconds of the head, with its logits and with the largest alone\n",
              model.name);
  const Product& head = model.products.back();
  Product largest = head;
  largest.epilogue = kMax;
  const Weights w(head, copies_beyond_l2(head.bytes()));
  const int calls = std::max(w.count, 4);
  for (const int32_t m : {9, 16, 32, 33, 64, 65, 96, 128, 129, 192, 256, 384, 512}) {
    std::printf("  m %4d  logits %7.1f  limit %7.1f",
                m,
                calls_us(stream,
                         calls,
                         [&](int n) {
                           room.run(stream, model, model.products.size() - 1, w.nth(n), m, true);
                         }),
                limit_us(head, m));
    if (m <= kMaxSm90GemmRows) {
      std::printf("  small %7.1f", calls_us(stream, calls, [&](int n) {
                    sm90_bf16_gemm_maxima(stream, room.args(largest, w.nth(n), m, false));
                  }));
    }
    for (const int32_t cols : {128, 192, 256}) {
      std::printf("  large %d %7.1f", cols, calls_us(stream, calls, [&](int n) {
                    sm90_bf16_gemm_large_m(
                        stream, room.args(largest, w.nth(n), m, false), {.cols = cols});
                  }));
    }
    std::printf("\n");
  }
}

void bench_steps(Stream& stream, const Model& model, Room& room) {
  std::vector<std::unique_ptr<Weights>> weights;
  std::vector<size_t> order;
  for (int layer = 0; layer < model.layers; ++layer) {
    for (size_t i = 0; i < 4; ++i) {
      weights.push_back(std::make_unique<Weights>(model.products[i], 1));
      order.push_back(i);
    }
  }
  weights.push_back(std::make_unique<Weights>(model.products[4], 1));
  order.push_back(4);
  std::printf("%s: milliseconds of a step's linears, norms and gates\n", model.name);
  for (const int32_t m : {1, 2, 4, 8, 9, 16, 32, 64, 96, 128, 192, 256, 384, 512, 2048, kMaxRows}) {
    double ms[2] = {};
    for (const bool invariant : {false, true}) {
      ms[invariant ? 1 : 0] = 1e-3 * static_cast<double>(order.size()) *
                              calls_us(stream, static_cast<int>(order.size()), [&](int n) {
                                const size_t i = order[n];
                                room.run(stream,
                                         model,
                                         i,
                                         weights[n]->nth(0),
                                         i == 4 ? std::min(m, kMaxHeadRows) : m,
                                         invariant);
                              });
    }
    std::printf("  m %4d  default %7.3f  invariant %7.3f  %+6.1f%%\n",
                m,
                ms[0],
                ms[1],
                100.0 * (ms[1] / ms[0] - 1.0));
  }
}

constexpr int32_t kParts[] = {1, 2, 4, 8};

// sm90_bf16_gemm_warps: parts/groups/stages.
void sweep_warps(Stream& stream, const Product& p, const Room& room, const Weights& w, int32_t m) {
  std::printf("  %-8s m %4d warps", p.name, m);
  const int32_t num_sms = stream.device().facts().num_sms;
  for (const int32_t parts : kParts) {
    Sm90WarpPlan last;
    for (const int32_t shared : {56, 112, 220}) {
      const Sm90WarpPlan plan =
          sm90_warp_plan(m, p.n, p.k, p.epilogue, parts, num_sms, shared << 10);
      if ((plan.stages == last.stages && plan.groups == last.groups) ||
          sm90_warp_shared_bytes(plan, m) > size_t{224} << 10) {
        continue;
      }
      last = plan;
      for (int rounds = 1; rounds <= 2; ++rounds) {  // fewer warps, each with more units
        const int32_t groups = (plan.groups + rounds - 1) / rounds;
        if (rounds == 2 && groups == plan.groups) {
          continue;
        }
        Sm90WarpPlan tried = plan;
        tried.groups = groups;
        tried.stages = std::min(plan.stages * plan.groups / groups, kMaxSm90WarpStages);
        const double us = calls_us(stream, w.count, [&](int n) {
          sm90_bf16_gemm_warps(stream, room.args(p, w.nth(n), m, true), tried);
        });
        std::printf(" | %d/%d/%d %.2f", parts, tried.groups, tried.stages, us);
      }
    }
  }
  std::printf("\n");
}

// sm90_bf16_gemm_small_m: parts/groups/columns/stages.
void sweep_small(Stream& stream, const Product& p, const Room& room, const Weights& w, int32_t m) {
  std::printf("  %-8s m %4d small", p.name, m);
  const auto time = [&](const Sm90GemmPlan& plan) {
    const double us = calls_us(stream, w.count, [&](int n) {
      sm90_bf16_gemm_small_m(stream, room.args(p, w.nth(n), m, true), plan);
    });
    std::printf(" | %d/%d/%d/%d %.2f", plan.split, plan.groups, plan.cols, plan.stages, us);
  };
  for (const int32_t parts : kParts) {
    for (const int32_t groups : {1, 2, 3}) {
      const int32_t ctas = (p.n + 64 * groups - 1) / (64 * groups) * parts;
      if (parts > 1 && (ctas > 520 || (groups == 3 && ctas < 64))) {
        continue;
      }
      for (const int32_t cols : {32, 64, 128}) {
        if ((cols < m && cols < 128) || (cols > m && cols > 32) || (groups == 2 && cols < 128)) {
          continue;
        }
        int32_t last = 0;
        for (const int32_t shared : {72 << 10, 110 << 10, kSm90GemmSharedBytes}) {
          Sm90GemmPlan plan = {.cols = cols, .groups = groups, .split = parts};
          plan.stages = std::min(sm90_gemm_stages(plan, shared), (p.k / 64 + parts - 1) / parts);
          if (plan.stages >= 2 && plan.stages != last) {
            time(plan);
          }
          last = plan.stages;
        }
      }
    }
  }
  std::printf("\n");
}

// sm90_bf16_gemm_large_m, without the half of a norm: parts/columns.
void sweep_large(Stream& stream, const Product& p, const Room& room, const Weights& w, int32_t m) {
  std::printf("  %-8s m %4d large", p.name, m);
  const auto time = [&](const Sm90LargePlan& plan) {
    const double us = calls_us(stream, std::min(w.count, m > 1024 ? 4 : 64), [&](int n) {
      sm90_bf16_gemm_large_m(stream, room.args(p, w.nth(n), m, false), plan);
    });
    std::printf(" | %d/%d %.2f", plan.chunks, plan.cols, us);
  };
  if (p.epilogue != kAdd && !p.y_f32) {
    for (const int32_t cols : {64, 96}) {
      time({cols, 1});
    }
  }
  for (const int32_t cols : {128, 192, 256}) {
    time({cols, 1});
  }
  for (const int32_t parts : {2, 4}) {
    for (const int32_t cols : {64, 128, 192}) {
      time({cols, parts});
    }
  }
  std::printf("\n");
}

void sweep(Stream& stream, const Model& model, const Room& room, const Chosen& chosen) {
  std::printf("%s: microseconds of other plans\n", model.name);
  for (const Product& p : model.products) {
    if (!chosen(p)) {
      continue;
    }
    const bool head = p.n > 1 << 16;
    const Weights w(p, copies_beyond_l2(p.bytes()));
    for (const int32_t m : {1, 4, 8}) {
      sweep_warps(stream, p, room, w, m);
    }
    for (const int32_t m : {1, 8, 16, 32, 64, 128, 256, 384, 512}) {
      sweep_small(stream, p, room, w, m);
    }
    for (const int32_t m : {128, 256, 384, 512, 1024, 2048, 8192}) {
      if (!head || m <= kMaxHeadRows) {
        sweep_large(stream, p, room, w, m);
      }
    }
  }
}

bool named(int argc, char** argv, const char* what) {
  return std::any_of(
      argv + 1, argv + argc, [&](const char* arg) { return std::strcmp(arg, what) == 0; });
}

int run(int argc, char** argv) {
  const auto any_of = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* name) { return named(argc, argv, name); });
  };
  const bool all = !any_of({"steps", "products", "plans", "heads"});
  const bool every_operation = !any_of({"qkv", "o", "gate_up", "down", "head"});
  const Chosen chosen = [&](const Product& p) {
    return every_operation || named(argc, argv, p.name);
  };
  const bool every_model = !named(argc, argv, "Qwen3-0.6B") && !named(argc, argv, "Qwen3-8B");
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const BenchDevice bench;
  Stream& stream = *bench.stream;
  for (const ModelProducts& products : model_products()) {
    const Model model(products);
    if (!every_model && !named(argc, argv, model.name)) {
      continue;
    }
    for (const bool invariant : {false, true}) {
      std::vector<LinearShape> shapes;
      for (const Product& p : model.products) {
        shapes.push_back(p.shape(invariant));
      }
      cuda::prepare_linear(stream.device().facts(), shapes, kMaxRows, true);
    }
    Room room(model);
    if (all || named(argc, argv, "steps")) {
      bench_steps(stream, model, room);
    }
    if (all || named(argc, argv, "products")) {
      bench_products(stream, model, room, chosen);
    }
    if (named(argc, argv, "plans")) {
      sweep(stream, model, room, chosen);
    }
    if (named(argc, argv, "heads")) {
      bench_heads(stream, model, room);
    }
  }
  return 0;
}

}  // namespace
}  // namespace warprow::cuda

int main(int argc, char** argv) { return warprow::cuda::run(argc, argv); }
