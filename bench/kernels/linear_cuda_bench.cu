// SPDX-License-Identifier: Apache-2.0
// Times the CUDA linear: sm80_bf16_gemm_small_m and sm90_bf16_gemm_small_m against cuBLASLt by shape and number of
// rows, and all linear operations of a model in sequence in one graph.
//   linear_cuda_bench [shapes] [chain] [sweep] [sm90_gemm] [once] [Qwen3-0.6B] [Qwen3-8B]
// Without arguments: shapes and chain, both models. sweep tries other plans of sm80_bf16_gemm_small_m, sm90_gemm other
// plans of sm90_bf16_gemm_small_m. once runs each shape once, for a profiler.
#include "kernels/activation/act_and_mul.h"
#include "kernels/linear/cublaslt/cublaslt.h"
#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "kernels/norm/rms_norm.h"
#include "tests/support/linear_case.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <cuda_bf16.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/cuda_timing.h"
#include "bench/kernels/model_products.h"

namespace warprow::cuda {
namespace {

// An operation of a model, and the numbers of rows that are timed.
struct Shape : testing::LinearCase {
  explicit Shape(const ModelProduct& product) : name(product.name) {
    n = product.n;
    k = product.k;
    epilogue = product.epilogue;
    norm = product.norm;
    y_f32 = product.y_f32;
  }
  const char* name;
};

struct Model {
  const char* name;
  int layers;
  std::vector<Shape> shapes;  // of one layer, then the head

  explicit Model(const ModelProducts& of)
      : name(of.name), layers(of.layers), shapes(of.products.begin(), of.products.end()) {}
};

// Uniform random numbers of both signs, of a layer's magnitude.
template <typename T>
__global__ void randomise(T* out, size_t count, float scale, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 0x9E3779B9U + seed;
    h = (h ^ (h >> 16)) * 0x85EBCA6BU;
    h = (h ^ (h >> 13)) * 0xC2B2AE35U;
    h ^= h >> 16;
    out[i] = static_cast<T>((static_cast<float>(h >> 8) * 0x1p-23F - 1.0F) * scale);
  }
}

template <typename T>
void fill_random(BenchBuffer& buffer, float scale, uint32_t seed) {
  randomise<<<1056, 256>>>(buffer.as<T>(), buffer.bytes() / sizeof(T), scale, seed);
  WR_CUDA(cudaDeviceSynchronize());
}

// Buffers for up to max_m rows of any shape of a model.
struct Rows {
  explicit Rows(const Model& model, int max_m)
      : x(size_t{2} * max_m * widest(model, true)),
        residual(size_t{4} * max_m * widest(model, true)),
        norm(size_t{4} * widest(model, true)),
        y(size_t{4} * max_m * widest(model, false)),
        gated(size_t{2} * max_m * widest(model, false)),
        squares(size_t{4} * max_m * widest(model, true) / 64),
        workspace(kLtWorkspaceBytes) {
    fill_random<__nv_bfloat16>(x, 1.0F, 1);
    fill_random<float>(residual, 1.0F, 2);
    fill_random<float>(norm, 1.0F, 3);
    fill_random<float>(squares, 1.0F, 5);
    fill_random<float>(y, 1.0F, 4);
  }
  static size_t widest(const Model& model, bool inputs) {
    size_t widest = 0;
    for (const Shape& s : model.shapes) {
      widest = std::max<size_t>(widest, inputs ? s.k : s.n);
    }
    return widest;
  }
  BenchBuffer x;
  BenchBuffer residual;
  BenchBuffer norm;
  BenchBuffer y;
  BenchBuffer gated;
  BenchBuffer squares;
  BenchBuffer workspace;
};

Sm80GemmArgs sm80_gemm_args(const Shape& s, const Rows& rows, const void* w, int m) {
  Sm80GemmArgs args;
  args.w = w;
  args.n = s.n;
  args.k = s.k;
  args.m = m;
  const bool norm = s.norm && sm80_gemm_takes_norm(m, s.k);
  args.x = norm ? rows.residual.as<void>() : rows.x.as<void>();
  args.x_stride = s.k;
  args.norm_weight = norm ? rows.norm.as<float>() : nullptr;
  args.norm_eps = 1e-6F;
  args.epilogue = s.epilogue;
  args.y_f32 = s.y_f32;
  args.y = rows.y.as<void>();
  args.y_stride = s.epilogue == LinearEpilogue::kSwiGlu ? s.n / 2 : s.n;
  return args;
}

void run_norm(Stream& stream, const Shape& s, const Rows& rows, int m) {
  cuda::rms_norm(stream,
                 {ActView(DType::kF32, rows.residual.as<void>(), m, s.k),
                  make_view<const float>(rows.norm.as<float>(), s.k),
                  ActView(DType::kBF16, rows.x.as<void>(), m, s.k),
                  1e-6F});
}

// A norm that is not fused runs as a kernel of its own.
void launch_own(Stream& stream,
                const Shape& s,
                const Rows& rows,
                const Sm80GemmArgs& args,
                const Sm80GemmPlan& plan) {
  if (s.norm && args.norm_weight == nullptr) {
    run_norm(stream, s, rows, args.m);
  }
  sm80_bf16_gemm_small_m(stream, args, plan);
}

Sm90GemmArgs sm90_gemm_args(const Shape& s, const Rows& rows, const void* w, int m) {
  Sm90GemmArgs args;
  args.w = w;
  args.n = s.n;
  args.k = s.k;
  args.m = m;
  args.x = rows.x.as<void>();
  args.x_stride = s.k;
  args.epilogue = s.epilogue;
  args.y_f32 = s.y_f32;
  args.y = rows.y.as<void>();
  args.y_stride = s.epilogue == LinearEpilogue::kSwiGlu ? s.n / 2 : s.n;
  return args;
}

void run_lt(Stream& stream, const Shape& s, const Rows& rows, const void* w, int m) {
  const LtProduct product = {s.n, s.k, s.y_f32, s.epilogue == LinearEpilogue::kAdd, false};
  LtOperands at;
  at.m = m;
  at.x = rows.x.as<void>();
  at.x_stride = s.k;
  at.w = w;
  at.y = rows.y.as<void>();
  at.y_stride = s.n;
  at.workspace = rows.workspace.as<std::byte>();
  CublasLt::of(stream.device().facts()).run(as_cuda(stream).handle(), product, at);
}

// The whole operation with cuBLASLt. Norm and gate are separate kernels.
void run_lt_operation(Stream& stream, const Shape& s, const Rows& rows, const void* w, int m) {
  if (s.norm) {
    run_norm(stream, s, rows, m);
  }
  run_lt(stream, s, rows, w, m);
  if (s.epilogue == LinearEpilogue::kSwiGlu) {
    cuda::silu_and_mul(stream,
                       {ActView(DType::kBF16, rows.y.as<void>(), m, s.n),
                        ActView(DType::kBF16, rows.gated.as<void>(), m, s.n / 2)});
  }
}

// The operation as linear runs it: by sm90_bf16_gemm_small_m where that is chosen, else by cuBLASLt. Norms are split:
// the GEMM with a residual add writes sums of squares, and the GEMM after the norm applies it. The head's norm is a
// kernel.
void run_sm90_gemm(Stream& stream, const Shape& s, const Rows& rows, const void* w, int m) {
  if (m > sm90_gemm_rows(s.epilogue, s.n, s.k, stream.device().facts())) {
    run_lt_operation(stream, s, rows, w, m);
    return;
  }
  Sm90GemmArgs args = sm90_gemm_args(s, rows, w, m);
  if (s.norm &&
      (s.y_f32 || m > sm90_gemm_rows(LinearEpilogue::kAdd, s.k, s.k, stream.device().facts()))) {
    run_norm(stream, s, rows, m);
  } else if (s.norm) {
    args.squares = rows.squares.as<float>();
    args.norm_eps = 1e-6F;
  } else {
    args.next_weight = rows.norm.as<float>();
    args.next_x = rows.gated.as<void>();
    args.next_squares = rows.squares.as<float>();
  }
  sm90_bf16_gemm_small_m(stream, args);
}

void tune(Stream& stream, const Model& model, int max_m) {
  for (const Shape& s : model.shapes) {
    CublasLt::of(stream.device().facts())
        .tune({s.n, s.k, s.y_f32, s.epilogue == LinearEpilogue::kAdd, false}, 1, max_m);
  }
}

void print_time(const char* who, const Shape& s, int m, double us) {
  testing::LinearCase timed = s;
  timed.m = m;
  const double bytes = timed.weight_bytes();
  const double flops = timed.flops();
  const double limit_us = std::max(bytes / kReadBytesPerSecond, flops / kBf16FlopsPerSecond) * 1e6;
  std::printf("  %s %7.2f us %5.2f TB/s %4.0f TF/s %3.0f%%",
              who,
              us,
              bytes / us * 1e-6,
              flops / us * 1e-6,
              100.0 * limit_us / us);
}

// Copies of one weight matrix. Each call reads another copy.
struct Weights {
  explicit Weights(const Shape& s)
      : bytes(size_t{2} * s.n * s.k), count(copies_beyond_l2(bytes)), buffer(bytes * count) {
    fill_random<__nv_bfloat16>(buffer, 0.03F, 5);
  }
  [[nodiscard]] const void* nth(int i) const {
    return buffer.as<std::byte>() + bytes * (i % count);
  }
  size_t bytes;
  int count;
  BenchBuffer buffer;
};

void bench_shapes(Stream& stream, const Model& model) {
  std::printf("%s\n", model.name);
  const Rows rows(model, 512);
  for (const Shape& s : model.shapes) {
    const Weights w(s);
    for (const int m : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}) {
      std::printf("%-8s m %3d", s.name, m);
      if (m <= kMaxSm80GemmRows) {
        const Sm80GemmArgs args = sm80_gemm_args(s, rows, nullptr, m);
        print_time("own", s, m, graph_us(stream, w.count, [&](int i) {
                     Sm80GemmArgs nth = args;
                     nth.w = w.nth(i);
                     launch_own(stream, s, rows, nth, sm80_gemm_plan(nth, stream.device().facts()));
                   }));
      }
      if (m <= sm90_gemm_rows(s.epilogue, s.n, s.k, stream.device().facts())) {
        print_time("sm90_gemm", s, m, graph_us(stream, w.count, [&](int i) {
                     sm90_bf16_gemm_small_m(stream, sm90_gemm_args(s, rows, w.nth(i), m));
                   }));
      }
      print_time("Lt ", s, m, graph_us(stream, w.count, [&](int i) {
                   run_lt(stream, s, rows, w.nth(i), m);
                 }));
      if (s.norm || s.epilogue == LinearEpilogue::kSwiGlu) {
        std::printf("  with norm and gate %.2f us", graph_us(stream, w.count, [&](int i) {
                      run_lt_operation(stream, s, rows, w.nth(i), m);
                    }));
      }
      std::printf("\n");
    }
  }
}

std::vector<Sm80GemmPlan> plans_to_try() {
  std::vector<Sm80GemmPlan> out;
  for (const int tile_rows : {16, 32}) {
    for (const int teams : {1, 2}) {
      for (const int stages : {1, 2, 3, 4}) {
        out.push_back({.tile_rows = tile_rows, .num_teams = teams, .stages = stages});
      }
    }
  }
  return out;
}

// Whether the completed plan equals the requested one.
bool finish_exactly(Sm80GemmPlan& plan, const Sm80GemmArgs& args, const DeviceFacts& device) {
  const Sm80GemmPlan asked = plan;
  finish_plan(plan, args, device);
  return plan.stages == asked.stages && plan.num_teams == asked.num_teams;
}

void print_plan(const Sm80GemmPlan& plan) {
  std::printf(" | %d/%d/%d", plan.tile_rows, plan.num_teams, plan.stages);
}

// Other plans of sm80_bf16_gemm_small_m for one shape, against the chosen plan.
void sweep(Stream& stream, const Model& model) {
  const Rows rows(model, kMaxSm80GemmRows);
  for (const Shape& s : model.shapes) {
    const Weights w(s);
    for (const int m : {1, 8, 16, 32}) {
      std::printf("%s %s m %d:", model.name, s.name, m);
      for (Sm80GemmPlan plan : plans_to_try()) {
        Sm80GemmArgs args = sm80_gemm_args(s, rows, nullptr, m);
        if (!finish_exactly(plan, args, stream.device().facts())) {
          continue;
        }
        const double us = graph_us(
            stream,
            w.count,
            [&](int i) {
              args.w = w.nth(i);
              launch_own(stream, s, rows, args, plan);
            },
            5);
        print_plan(plan);
        std::printf(" %.2f", us);
      }
      std::printf("\n");
    }
  }
}

std::vector<Sm90GemmPlan> wide_plans_to_try(const Shape& s, int m) {
  std::vector<Sm90GemmPlan> out;
  for (const int groups : {1, 3}) {
    for (const int split : {1, 2, 3, 4, 6, 8}) {
      const int tiles = (s.n + 64 * groups - 1) / (64 * groups);
      const int blocks = tiles * split;
      const int steps = s.k / 64 / split;
      if ((blocks < 60 && split < 6) || (split > 1 && blocks > 400)) {
        continue;
      }
      int last = 0;
      for (const int shared : {75 << 10, 112 << 10, kSm90GemmSharedBytes}) {
        Sm90GemmPlan plan = {.cols = m, .groups = groups, .split = split};
        plan.stages = std::min(sm90_gemm_stages(plan, shared), steps);
        if (plan.stages > last && plan.stages >= 2) {
          out.push_back(plan);
        }
        last = plan.stages;
      }
    }
  }
  return out;
}

// The best plans of sm90_bf16_gemm_small_m, as groups/split/stages, beside the chosen plan.
void sweep_wide(Stream& stream, const Model& model) {
  const Rows rows(model, kMaxSm90GemmRows);
  for (const Shape& s : model.shapes) {
    const Weights w(s);
    for (const int m : {32, 64, 128}) {
      const auto time_us = [&](const Sm90GemmPlan& plan) {
        return graph_us(
            stream,
            w.count,
            [&](int i) {
              sm90_bf16_gemm_small_m(stream, sm90_gemm_args(s, rows, w.nth(i), m), plan);
            },
            3);
      };
      std::vector<std::pair<double, Sm90GemmPlan>> found;
      for (const Sm90GemmPlan& plan : wide_plans_to_try(s, m)) {
        found.emplace_back(time_us(plan), plan);
      }
      std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
        return a.first < b.first;
      });
      found.resize(std::min<size_t>(found.size(), 8));
      found.emplace_back(0.0, sm90_gemm_plan(m, s.n, s.k, stream.device().facts().num_sms));
      found.back().first = time_us(found.back().second);
      std::printf("%s %s m %d:", model.name, s.name, m);
      for (const auto& [us, plan] : found) {
        std::printf(" | %d/%d/%d %.2f", plan.groups, plan.split, plan.stages, us);
      }
      std::printf("\n");
    }
  }
}

// Every linear operation of a step in order, each with its own weights.
struct Chain {
  explicit Chain(const Model& model) {
    for (int layer = 0; layer <= model.layers; ++layer) {
      const size_t first = layer < model.layers ? 0 : 4;
      const size_t last = layer < model.layers ? 4 : 5;
      for (size_t i = first; i < last; ++i) {
        const Shape& s = model.shapes[i];
        weights.push_back(std::make_unique<BenchBuffer>(size_t{2} * s.n * s.k));
        fill_random<__nv_bfloat16>(*weights.back(), 0.03F, static_cast<uint32_t>(steps.size()));
        bytes += weights.back()->bytes();
        steps.push_back(&s);
      }
    }
  }
  [[nodiscard]] int count() const { return static_cast<int>(steps.size()); }
  // Time in milliseconds. launch_step(shape, weights) launches one operation.
  template <typename F>
  double time_ms(Stream& stream, F launch_step) const {
    return 1e-3 * count() * graph_us(stream, count(), [&](int i) {
             launch_step(*steps[i], weights[i]->as<void>());
           });
  }
  std::vector<std::unique_ptr<BenchBuffer>> weights;
  std::vector<const Shape*> steps;
  size_t bytes = 0;
};

// Our kernels include norms, gates and residual adds.
void bench_chain(Stream& stream, const Model& model, const Chain& chain) {
  const Rows rows(model, 512);
  std::printf("%s chain, %.3f GB, one read of it %.3f ms\n",
              model.name,
              chain.bytes * 1e-9,
              chain.bytes / kReadBytesPerSecond * 1e3);
  for (const int m : {1, 2, 4, 8, 12, 16, 32, 48, 64, 128, 256, 512}) {
    std::printf("m %3d", m);
    if (m <= kMaxSm80GemmRows) {
      const double ms = chain.time_ms(stream, [&](const Shape& s, const void* w) {
        const Sm80GemmArgs args = sm80_gemm_args(s, rows, w, m);
        launch_own(stream, s, rows, args, sm80_gemm_plan(args, stream.device().facts()));
      });
      std::printf("  own %.3f ms %.2f TB/s", ms, chain.bytes / ms * 1e-9);
    }
    if (m <= kMaxSm90GemmRows) {
      const double ms = chain.time_ms(
          stream, [&](const Shape& s, const void* w) { run_sm90_gemm(stream, s, rows, w, m); });
      std::printf("  sm90 %.3f ms %.2f TB/s", ms, chain.bytes / ms * 1e-9);
    }
    const double ms = chain.time_ms(
        stream, [&](const Shape& s, const void* w) { run_lt(stream, s, rows, w, m); });
    const double whole_ms = chain.time_ms(
        stream, [&](const Shape& s, const void* w) { run_lt_operation(stream, s, rows, w, m); });
    std::printf("  Lt %.3f ms %.2f TB/s, with norm and gate %.3f ms\n",
                ms,
                chain.bytes / ms * 1e-9,
                whole_ms);
  }
}

// Runs each shape once, outside a graph, for a profiler.
void run_once(Stream& stream, const Model& model) {
  const Rows rows(model, 16);
  for (const Shape& s : model.shapes) {
    const Weights w(s);
    for (const int m : {1, 8, 16}) {
      const Sm80GemmArgs args = sm80_gemm_args(s, rows, w.nth(m), m);
      sm80_bf16_gemm_small_m(stream, args, sm80_gemm_plan(args, stream.device().facts()));
      stream.synchronize();
    }
  }
}

bool named(int argc, char** argv, const char* what) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], what) == 0) {
      return true;
    }
  }
  return false;
}

int run(int argc, char** argv) {
  const bool all = !named(argc, argv, "shapes") && !named(argc, argv, "chain") &&
                   !named(argc, argv, "sweep") && !named(argc, argv, "sm90_gemm");
  const bool every_model = !named(argc, argv, "Qwen3-0.6B") && !named(argc, argv, "Qwen3-8B");
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const BenchDevice bench;
  Stream& stream = *bench.stream;
  std::printf("cuBLASLt %s\n", CublasLt::of(stream.device().facts()).version().c_str());
  for (const ModelProducts& products : model_products()) {
    const Model model(products);
    if (!every_model && !named(argc, argv, model.name)) {
      continue;
    }
    const bool chain = all || named(argc, argv, "chain");
    const bool shapes = all || named(argc, argv, "shapes");
    if (chain || shapes) {
      tune(stream, model, 512);
    }
    if (chain) {
      bench_chain(stream, model, Chain(model));
    }
    if (shapes) {
      bench_shapes(stream, model);
    }
    if (named(argc, argv, "sweep")) {
      sweep(stream, model);
    }
    if (named(argc, argv, "sm90_gemm")) {
      sweep_wide(stream, model);
    }
    if (named(argc, argv, "once")) {
      run_once(stream, model);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace warprow::cuda

int main(int argc, char** argv) { return warprow::cuda::run(argc, argv); }
