// SPDX-License-Identifier: Apache-2.0
// Times the CUDA side of linear: the skinny kernel against cuBLASLt, by shape and number of rows,
// and all linear operations of a model one after the other in one graph.
//   linear_cuda_bench [shapes] [chain] [sweep]     nothing named: shapes and chain
#include "kernels/linear/cublaslt_cuda.h"
#include "kernels/linear/skinny_cuda.h"

#include <cstdio>
#include <cstring>
#include <cuda_bf16.h>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/cuda_timing.h"

namespace warprow::cuda {
namespace {

struct Shape {
  const char* name;
  int n;
  int k;
  LinearEpilogue epilogue;
  bool norm;
  bool y_f32;
};

struct Model {
  const char* name;
  int layers;
  std::vector<Shape> shapes;  // of a layer, then the head
};

const std::vector<Model>& models() {
  using enum LinearEpilogue;
  static const std::vector<Model> all = {{"Qwen3-0.6B",
                                          28,
                                          {{"qkv", 4096, 1024, kStore, true, false},
                                           {"o", 1024, 2048, kAdd, false, true},
                                           {"gate_up", 6144, 1024, kSwiGlu, true, false},
                                           {"down", 1024, 3072, kAdd, false, true},
                                           {"head", 151936, 1024, kStore, true, true}}},
                                         {"Qwen3-8B",
                                          36,
                                          {{"qkv", 6144, 4096, kStore, true, false},
                                           {"o", 4096, 4096, kAdd, false, true},
                                           {"gate_up", 24576, 4096, kSwiGlu, true, false},
                                           {"down", 4096, 12288, kAdd, false, true},
                                           {"head", 151936, 4096, kStore, true, true}}}};
  return all;
}

// Numbers like a layer's: uniform, of either sign.
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
        workspace(kLtWorkspaceBytes) {
    fill_random<__nv_bfloat16>(x, 1.0F, 1);
    fill_random<float>(residual, 1.0F, 2);
    fill_random<float>(norm, 1.0F, 3);
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
  BenchBuffer workspace;
};

SkinnyArgs skinny_args(const Shape& s, const Rows& rows, const void* w, int m) {
  SkinnyArgs args;
  args.w = w;
  args.n = s.n;
  args.k = s.k;
  args.m = m;
  const bool norm = s.norm && skinny_takes_norm(m, s.k);
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
  CublasLt::get().run(as_cuda(stream).handle(), product, at);
}

void tune(const Model& model, int max_m) {
  for (const Shape& s : model.shapes) {
    CublasLt::get().tune({s.n, s.k, s.y_f32, s.epilogue == LinearEpilogue::kAdd, false}, max_m);
  }
}

void print_time(const char* who, const Shape& s, int m, double us) {
  const double bytes = 2.0 * s.n * s.k;
  const double flops = 2.0 * m * s.n * s.k;
  const double limit_us = std::max(bytes / kReadBytesPerSecond, flops / kBf16FlopsPerSecond) * 1e6;
  std::printf("  %s %7.2f us %5.2f TB/s %4.0f TF/s %3.0f%%",
              who,
              us,
              bytes / us * 1e-6,
              flops / us * 1e-6,
              100.0 * limit_us / us);
}

// Copies of one weight matrix, so that every call reads another.
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
      if (m <= kMaxSkinnyRows) {
        const SkinnyArgs args = skinny_args(s, rows, nullptr, m);
        print_time("own", s, m, graph_us(stream, w.count, [&](int i) {
                     SkinnyArgs nth = args;
                     nth.w = w.nth(i);
                     skinny(stream, nth);
                   }));
      }
      print_time("Lt ", s, m, graph_us(stream, w.count, [&](int i) {
                   run_lt(stream, s, rows, w.nth(i), m);
                 }));
      std::printf("\n");
    }
  }
}

// Plans of the skinny kernel for one shape, against the chosen one.
void sweep(Stream& stream, const Model& model) {
  const Rows rows(model, kMaxSkinnyRows);
  for (const Shape& s : model.shapes) {
    const Weights w(s);
    for (const int m : {1, 8, 16, 32}) {
      std::printf("%s %s m %d:", model.name, s.name, m);
      for (const int tile_rows : {8, 16, 32}) {
        for (const int kib : {48, 72, 104, 150}) {
          for (const int l2 : {0, 4}) {
            SkinnyArgs args = skinny_args(s, rows, nullptr, m);
            SkinnyPlan plan = skinny_plan(args, 132);
            if (s.epilogue == LinearEpilogue::kSwiGlu && tile_rows == 8) {
              continue;
            }
            plan.tile_rows = tile_rows;
            plan.l2_chunks = l2;
            plan.stages = std::max(1, kib / tile_rows);
            finish_plan(plan, args, 132);
            if (plan.shared_bytes > 160 * 1024) {
              continue;
            }
            const double us = graph_us(
                stream,
                w.count,
                [&](int i) {
                  args.w = w.nth(i);
                  skinny(stream, args, plan);
                },
                5);
            std::printf(" %d/%d/%d %.2f", tile_rows, plan.stages, l2, us);
          }
        }
      }
      std::printf("\n");
    }
  }
}

// Every linear operation of a step in order, each with weights of its own. Ours has the norms, gates
// and sums inside; cuBLASLt's has the bare products.
void bench_chain(Stream& stream, const Model& model) {
  const Rows rows(model, 512);
  size_t bytes = 0;
  std::vector<std::unique_ptr<BenchBuffer>> weights;
  std::vector<const Shape*> steps;
  for (int layer = 0; layer <= model.layers; ++layer) {
    const size_t first = layer < model.layers ? 0 : 4;
    const size_t last = layer < model.layers ? 4 : 5;
    for (size_t i = first; i < last; ++i) {
      const Shape& s = model.shapes[i];
      weights.push_back(std::make_unique<BenchBuffer>(size_t{2} * s.n * s.k));
      fill_random<__nv_bfloat16>(*weights.back(), 0.03F, static_cast<uint32_t>(weights.size()));
      bytes += weights.back()->bytes();
      steps.push_back(&s);
    }
  }
  const int count = static_cast<int>(steps.size());
  std::printf("%s chain, %.3f GB, one read of it %.3f ms\n",
              model.name,
              bytes * 1e-9,
              bytes / kReadBytesPerSecond * 1e3);
  for (const int m : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}) {
    std::printf("m %3d", m);
    if (m <= kMaxSkinnyRows) {
      const double ms = 1e-3 * count * graph_us(stream, count, [&](int i) {
                          skinny(stream, skinny_args(*steps[i], rows, weights[i]->as<void>(), m));
                        });
      std::printf("  own %.3f ms %.2f TB/s", ms, bytes / ms * 1e-9);
    }
    const double ms = 1e-3 * count * graph_us(stream, count, [&](int i) {
                        run_lt(stream, *steps[i], rows, weights[i]->as<void>(), m);
                      });
    std::printf("  Lt %.3f ms %.2f TB/s\n", ms, bytes / ms * 1e-9);
  }
}

int run(int argc, char** argv) {
  const auto wanted = [&](const char* what) {
    bool any = false;
    bool found = false;
    for (int i = 1; i < argc; ++i) {
      const bool part = std::strcmp(argv[i], "shapes") == 0 || std::strcmp(argv[i], "chain") == 0 ||
                        std::strcmp(argv[i], "sweep") == 0;
      any |= part;
      found |= std::strcmp(argv[i], what) == 0;
    }
    return found || (!any && std::strcmp(what, "sweep") != 0);
  };
  const BenchDevice bench;
  Stream& stream = *bench.stream;
  std::printf("cuBLASLt %s\n", CublasLt::get().version().c_str());
  for (const Model& model : models()) {
    if (wanted("shapes") || wanted("chain")) {
      tune(model, 512);
    }
    if (wanted("chain")) {
      bench_chain(stream, model);
    }
    if (wanted("shapes")) {
      bench_shapes(stream, model);
    }
    if (wanted("sweep")) {
      sweep(stream, model);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace warprow::cuda

int main(int argc, char** argv) { return warprow::cuda::run(argc, argv); }
