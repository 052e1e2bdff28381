// SPDX-License-Identifier: Apache-2.0
// Products of e4m3 weights and inputs.
//   fp8_linear_cuda_bench [check] [steps] [products] [large] [scattered] [Qwen3-8B] [Qwen3-0.6B]
// Without arguments: all for Qwen3-8B. check: whether all kernels have the same bits, and sums in double. steps: all linears of
// a step but the head, with their norms, gates and rounded inputs. products: each kernel alone, with other plans. large: the
// kernels of many rows alone. Blocks of 128 rows of w have one scale for a group; scattered: each row has its own.
#include "base/float8.h"
#include "base/math.h"
#include "kernels/linear/fp8/fp8_tiles.h"
#include "kernels/linear/fp8/round_inputs.h"
#include "kernels/linear/fp8/sm90_fp8_gemm.h"
#include "kernels/linear/fp8/sm90_fp8_large.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernels/cuda_timing.h"
#include "bench/kernels/model_products.h"

namespace warprow::cuda {
namespace {

using enum LinearEpilogue;

constexpr int32_t kMaxRows = 8192;

int32_t outputs_of(const ModelProduct& p) { return p.epilogue == kSwiGlu ? p.n / 2 : p.n; }

struct Weight {
  Weight(const ModelProduct& p, F8Inputs inputs, bool scattered) {
    weight.kind = PackedKind::kF8F8;
    weight.n = p.n;
    weight.k = p.k;
    weight.group = 128;
    weight.inputs = inputs;
    const bool grouped = inputs == F8Inputs::kGroup;
    const auto unit = static_cast<size_t>(fp8_unit_bytes(p.k, grouped));
    bytes = unit * static_cast<size_t>(ceil_div(p.n, kFp8UnitRows));
    constexpr size_t kUnits = 128 / kFp8UnitRows;  // of a block
    const size_t some = std::max<size_t>(1, (size_t{1} << 24) / unit / kUnits) * kUnits * unit;
    std::vector<std::byte> units(std::min(bytes, some));
    std::mt19937 rng(5);
    for (size_t at = 0; at < units.size(); at += unit) {
      const auto numbers = static_cast<size_t>(fp8_scales_at(p.k));
      for (size_t i = 0; i < numbers; ++i) {
        units[at + i] = static_cast<std::byte>(rng() & 0xbfU);
      }
      for (size_t i = numbers; i < unit; i += 4) {
        const size_t block = at / unit / kUnits * 7 + (i - numbers) / 64 * 5;
        const size_t kind = grouped && !scattered ? block : rng();
        const float scale =
            0.5e-2F * static_cast<float>(1 + kind % 3) / std::sqrt(static_cast<float>(p.k));
        std::memcpy(units.data() + at + i, &scale, 4);
      }
    }
    auto* data = memory.allocate<std::byte>(bytes);
    for (size_t at = 0; at < bytes; at += units.size()) {
      WR_CUDA(cudaMemcpy(
          data + at, units.data(), std::min(units.size(), bytes - at), cudaMemcpyHostToDevice));
    }
    weight.data = data;
  }
  PackedWeight weight;
  size_t bytes = 0;
  BenchBuffers memory;
};

class Room {
 public:
  // scattered: whether each row of w has scales of its own for groups.
  Room(const ModelProducts& model, bool scattered) : scattered_(scattered) {
    size_t inputs = 0;
    size_t outputs = 0;
    for (int i = 0; i < 4; ++i) {
      const ModelProduct& p = model.products[static_cast<size_t>(i)];
      inputs = std::max<size_t>(inputs, size_t{kMaxRows} * p.k);
      outputs = std::max<size_t>(outputs, size_t{kMaxRows} * outputs_of(p));
      hidden_ = p.epilogue == kAdd ? p.n : hidden_;
    }
    outputs_ = outputs;
    x_ = memory_.normal_bf16(inputs);
    y_ = memory_.allocate<float>(outputs);
    next_ = memory_.normal_bf16(size_t{kMaxRows} * hidden_);
    weight_ = memory_.allocate<float>(1 << 16);
    squares_ = memory_.allocate<float>(half_norm_squares(kMaxRows, hidden_));
    WR_CUDA(cudaMemset(weight_, 0x3f, (size_t{1} << 16) * sizeof(float)));
    const std::vector<float> squares(half_norm_squares(kMaxRows, hidden_), 64.0F);
    WR_CUDA(cudaMemcpy(
        squares_, squares.data(), squares.size() * sizeof(float), cudaMemcpyHostToDevice));
    rounded_ = memory_.allocate<std::byte>(inputs + (size_t{64} << 20));
  }

  [[nodiscard]] bool scattered() const { return scattered_; }
  void clear(size_t bytes) { WR_CUDA(cudaMemset(y_, 0, bytes)); }
  [[nodiscard]] const float* y() const { return y_; }

  // next: whether a sum begins the next norm.
  [[nodiscard]] Sm90Fp8Args args(const ModelProduct& p,
                                 const PackedWeight& w,
                                 int32_t m,
                                 bool next) const {
    Sm90GemmArgs a;
    a.w = w.data;
    a.x = x_;
    a.x_stride = p.k;
    a.y = y_;
    a.y_stride = outputs_of(p);
    a.y_f32 = p.y_f32;
    a.epilogue = p.epilogue;
    a.squares = p.norm ? squares_ : nullptr;
    a.norm_eps = 1e-6F;
    if (p.epilogue == kAdd && next) {
      a.next_weight = weight_;
      a.next_x = next_;
      a.next_squares = squares_;
    }
    a.m = m;
    a.n = p.n;
    a.k = p.k;
    return {a, f8_rows_at(rounded_, w.inputs, m, p.k)};
  }
  void round(Stream& stream, const Sm90Fp8Args& args, const PackedWeight& w) const {
    RoundInputsArgs round;
    round.x = args.a.x;
    round.x_stride = args.a.x_stride;
    round.squares = args.a.squares;
    round.norm_eps = args.a.norm_eps;
    round.inputs = w.inputs;
    round.m = args.a.m;
    round.k = args.a.k;
    round.out = args.x;
    round_inputs(stream, round);
  }

 private:
  BenchBuffers memory_;
  bool scattered_;
  int32_t hidden_ = 0;
  size_t outputs_ = 0;
  uint16_t* x_ = nullptr;
  float* y_ = nullptr;
  uint16_t* next_ = nullptr;
  float* weight_ = nullptr;
  float* squares_ = nullptr;
  std::byte* rounded_ = nullptr;
};

void run(Stream& stream,
         Room& room,
         const ModelProduct& p,
         const PackedWeight& w,
         int32_t m,
         int32_t few_bytes,
         bool separate) {
  const int32_t sms = stream.device().facts().num_sms;
  Sm90Fp8Plan small = sm90_fp8_plan(w, m, sms, 0, few_bytes);
  const Sm90Fp8LargePlan large = sm90_fp8_large_plan(w, m, sms);
  if (m == 1 && !separate) {
    sm90_fp8_gemm(stream, room.args(p, w, m, true), w, small);
    return;
  }
  if (separate && m == 1) {
    small = sm90_fp8_plan(w, 2, sms, 0, few_bytes);
  }
  room.round(stream, room.args(p, w, m, true), w);
  if (small.cols == 128 &&
      sm90_fp8_large_us(large, w, m, sms) < sm90_fp8_us(small, m, p.n, p.k, sms)) {
    sm90_fp8_gemm_large(stream, room.args(p, w, m, false), w, large);
  } else {
    sm90_fp8_gemm(stream, room.args(p, w, m, true), w, small);
  }
}

void bench_steps(Stream& stream, const ModelProducts& model, Room& room, F8Inputs inputs) {
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<size_t> order;
  size_t bytes = 0;
  constexpr int kCopies = 3;  // layers take turns; L2 holds less than one
  for (int layer = 0; layer < model.layers; ++layer) {
    for (size_t i = 0; i < 4; ++i) {
      if (layer < kCopies) {
        weights.push_back(std::make_unique<Weight>(model.products[i], inputs, room.scattered()));
      }
      order.push_back(static_cast<size_t>(layer % kCopies) * 4 + i);
      bytes += weights[order.back()]->bytes;
    }
  }
  std::printf(
      "%s inputs %d: ms of a step's linears without the head; read time of the weights %.3f\n",
      model.name,
      static_cast<int>(inputs),
      bytes / kReadBytesPerSecond * 1e3);
  for (const int32_t m : {1, 2, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192}) {
    std::printf("  m %4d", m);
    for (const int32_t few : {72, 112, 150, 190, 225}) {
      for (const bool separate : {false, true}) {
        if ((separate && m > 1) || (m > 16 && few != 190)) {
          continue;
        }
        const int calls = static_cast<int>(order.size());
        const double us = graph_us(
            stream,
            calls,
            [&](int n) {
              const size_t at = order[static_cast<size_t>(n)];
              run(stream,
                  room,
                  model.products[at % 4],
                  weights[at]->weight,
                  m,
                  few * 1024,
                  separate);
            },
            5);
        std::printf("  %dK%s %.3f", few, separate ? " apart" : "", us * calls * 1e-3);
      }
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

void bench_products(
    Stream& stream, const ModelProducts& model, Room& room, F8Inputs inputs, bool only_large) {
  const int32_t sms = stream.device().facts().num_sms;
  for (size_t i = 0; i < 4; ++i) {
    const ModelProduct& p = model.products[i];
    std::vector<std::unique_ptr<Weight>> copies;
    copies.push_back(std::make_unique<Weight>(p, inputs, room.scattered()));
    const int count = std::min(8, copies_beyond_l2(copies[0]->bytes));
    while (static_cast<int>(copies.size()) < count) {
      copies.push_back(std::make_unique<Weight>(p, inputs, room.scattered()));
    }
    for (const int32_t m : {1, 8, 32, 64, 128, 256, 512, 2048, 8192}) {
      if (only_large && m < 128) {
        continue;
      }
      const double read = copies[0]->bytes / kReadBytesPerSecond * 1e6;
      std::printf("  %-8s m %4d read %7.2f flops(1400T) %7.2f",
                  p.name,
                  m,
                  read,
                  2.0 * m * p.n * p.k / 1400e12 * 1e6);
      const auto time = [&](const std::function<void(const PackedWeight&)>& call) {
        return graph_us(
            stream,
            m > 1024 ? 2 : 4 * count,
            [&](int n) { call(copies[static_cast<size_t>(n % count)]->weight); },
            3);
      };
      room.round(stream, room.args(p, copies[0]->weight, m, true), copies[0]->weight);
      std::printf(" round %.2f", time([&](const PackedWeight& w) {
                    room.round(stream, room.args(p, w, m, true), w);
                  }));
      if (m <= 512) {
        for (const int32_t parts : {1, 2, 4}) {
          if (parts * ceil_div(p.n, 64) > 3 * sms) {
            continue;
          }
          const Sm90Fp8Plan plan = sm90_fp8_plan(copies[0]->weight, m, sms, parts);
          const double us = time([&](const PackedWeight& w) {
            sm90_fp8_gemm(stream, room.args(p, w, m, true), w, plan);
          });
          std::printf(" | %d/%d %.2f", parts, plan.stages, us);
        }
      }
      if (m >= 128) {
        for (const int32_t cols : {128, 192}) {
          for (const int32_t parts : {1, 2}) {
            if (cols == 192 && (parts > 1 || inputs == F8Inputs::kGroup)) {
              continue;
            }
            const Sm90Fp8LargePlan plan{cols, parts};
            const double us = time([&](const PackedWeight& w) {
              sm90_fp8_gemm_large(stream, room.args(p, w, m, false), w, plan);
            });
            std::printf(" | large %d/%d %.2f", cols, parts, us);
          }
        }
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

// Bits of every kernel against those of the kernel of 128 columns, and its values against sums in double.
int check(Stream& stream, Room& room, const ModelProduct& p, F8Inputs inputs) {
  const int32_t sms = stream.device().facts().num_sms;
  int bad = 0;
  const Weight weight(p, inputs, room.scattered());
  const PackedWeight& w = weight.weight;
  const int32_t parts = sm90_fp8_parts(p.n, p.k);
  const auto row_bytes = static_cast<size_t>(outputs_of(p)) * (p.y_f32 ? 4 : 2);
  const auto result = [&](int32_t m, const std::function<void(const Sm90Fp8Args&)>& call) {
    room.clear(row_bytes * static_cast<size_t>(m));
    const Sm90Fp8Args args = room.args(p, w, m, false);
    room.round(stream, args, w);
    call(args);
    stream.synchronize();
    std::vector<std::byte> out(row_bytes * static_cast<size_t>(m));
    WR_CUDA(cudaMemcpy(out.data(), room.y(), out.size(), cudaMemcpyDeviceToHost));
    return out;
  };
  constexpr int32_t kRows = 300;
  const auto want = result(kRows, [&](const Sm90Fp8Args& args) {
    sm90_fp8_gemm(stream, args, w, sm90_fp8_plan(w, kRows, sms, parts));
  });
  const auto compare = [&](const char* name, int32_t m, const std::vector<std::byte>& got) {
    size_t differ = 0;
    size_t first = 0;
    const size_t element = p.y_f32 ? 4 : 2;
    for (size_t at = 0; at < got.size(); at += element) {
      if (std::memcmp(got.data() + at, want.data() + at, element) != 0) {
        first = differ == 0 ? at / element : first;
        ++differ;
      }
    }
    if (differ > 0) {
      float values[2] = {};
      if (p.y_f32) {
        std::memcpy(&values[0], got.data() + first * 4, 4);
        std::memcpy(&values[1], want.data() + first * 4, 4);
      } else {
        for (int v = 0; v < 2; ++v) {
          uint16_t bits = 0;
          std::memcpy(&bits, (v == 0 ? got : want).data() + first * 2, 2);
          values[v] = bf16_to_f32(bits);
        }
      }
      std::printf(
          "  DIFFERENT %s %d x %d inputs %d %s m %d: %zu of %zu elements, first %zu (row %zu): %g, "
          "not %g\n",
          p.name,
          p.n,
          p.k,
          static_cast<int>(inputs),
          name,
          m,
          differ,
          got.size() / element,
          first,
          first * element / row_bytes,
          values[0],
          values[1]);
      ++bad;
    }
  };
  for (const int32_t m : {1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 300}) {
    compare("small", m, result(m, [&](const Sm90Fp8Args& args) {
              sm90_fp8_gemm(stream, args, w, sm90_fp8_plan(w, m, sms, parts));
            }));
    if (m == 1) {
      Sm90Fp8Plan plan = sm90_fp8_plan(w, 2, sms, parts);
      compare("apart", m, result(m, [&](const Sm90Fp8Args& args) {
                sm90_fp8_gemm(stream, args, w, plan);
              }));
    }
    if (!(p.epilogue == kSwiGlu && p.y_f32)) {
      for (const int32_t cols : {128, 192}) {
        if (cols == 192 && (parts > 1 || inputs == F8Inputs::kGroup)) {
          continue;
        }
        compare(cols == 128 ? "large 128" : "large 192", m, result(m, [&](const Sm90Fp8Args& args) {
                  sm90_fp8_gemm_large(stream, args, w, {cols, parts});
                }));
      }
    }
  }
  return bad;
}

int check_all(Stream& stream, const ModelProducts& model, Room& room) {
  int bad = 0;
  for (const F8Inputs inputs : {F8Inputs::kRow, F8Inputs::kGroup, F8Inputs::kStatic}) {
    for (size_t i = 0; i < 4; ++i) {
      // Squares that are alike in quarters and whole are not: without a norm.
      ModelProduct p = model.products[i];
      p.norm = false;
      bad += check(stream, room, p, inputs);
    }
    bad += check(stream, room, {"odd", 112, 200, kStore, false, false}, inputs);
    bad += check(stream, room, {"odd f32", 208, 1096, kStore, false, true}, inputs);
    bad += check(stream, room, {"parts", 64, 2056, kAdd, false, true}, inputs);
  }
  std::printf("check: %d different\n", bad);
  return bad;
}

}  // namespace
}  // namespace warprow::cuda

int main(int argc, char** argv) {
  using namespace warprow;
  using namespace warprow::cuda;
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto has = [&](const std::string& name) {
    return std::find(args.begin(), args.end(), name) != args.end();
  };
  const bool any = has("check") || has("steps") || has("products") || has("large");
  BenchDevice on;
  std::printf("%s\n", on.device->facts().name.c_str());
  int bad = 0;
  for (const ModelProducts& model : model_products()) {
    if (!(has("Qwen3-8B") || has("Qwen3-0.6B") ? has(model.name)
                                               : std::strcmp(model.name, "Qwen3-8B") == 0)) {
      continue;
    }
    Room room(model, has("scattered"));
    if (!any || has("check")) {
      bad += check_all(*on.stream, model, room);
    }
    for (const F8Inputs inputs : {F8Inputs::kRow, F8Inputs::kGroup}) {
      if (!any || has("steps")) {
        bench_steps(*on.stream, model, room, inputs);
      }
      if (!any || has("products") || has("large")) {
        bench_products(*on.stream, model, room, inputs, has("large"));
      }
    }
  }
  return bad == 0 ? 0 : 1;
}
