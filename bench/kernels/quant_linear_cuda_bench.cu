// SPDX-License-Identifier: Apache-2.0
// Products with quantised weights.
//   quant_linear_cuda_bench [steps] [products] [bf16] [f8] [q4] [q4_f16] [q8] [q4_k] [q6_k] [Qwen3-8B] [Qwen3-0.6B]
// q4_f16: with scales that are no bf16. Without arguments: steps and products of Qwen3-8B, bf16, f8 and q4. steps: all linears of a step with their norms and gates, the
// head in bf16. products: each operation alone, with other numbers of parts (parts/groups/stages).
#include "base/math.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "kernels/linear/quant/sm90_quant_gemm.h"

#include <algorithm>
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
constexpr int32_t kMaxHeadRows = 512;

bool is_head(const ModelProduct& p) { return p.n > 1 << 16; }
int32_t outputs_of(const ModelProduct& p) { return p.epilogue == kSwiGlu ? p.n / 2 : p.n; }

// A form of weights, without sizes and data.
struct Form {
  const char* name;
  PackedWeight weight;
};

PackedWeight quant_form(PackedKind kind, int32_t zero_point, ScaleForm scales = ScaleForm::kF16) {
  PackedWeight weight;
  weight.kind = kind;
  weight.scales = scales;
  weight.group = 128;
  weight.zero_point = zero_point;
  return weight;
}

// As GGUF's types have them.
PackedWeight group_form(PackedKind kind, int32_t zero_point, int32_t group, bool has_bias) {
  PackedWeight weight = quant_form(kind, zero_point, ScaleForm::kBF16);
  weight.group = group;
  weight.has_bias = has_bias;
  return weight;
}

const std::vector<Form>& forms() {
  static const std::vector<Form> kForms{{"bf16", quant_form(PackedKind::kBF16, 0)},
                                        {"f8", quant_form(PackedKind::kF8, 0)},
                                        {"q4", quant_form(PackedKind::kQ4, 8, ScaleForm::kBF16)},
                                        {"q4_f16", quant_form(PackedKind::kQ4, 8)},
                                        {"q8", quant_form(PackedKind::kQ8, 128, ScaleForm::kBF16)},
                                        {"q4_k", group_form(PackedKind::kQ4, 0, 32, true)},
                                        {"q6_k", group_form(PackedKind::kQ6, 32, 16, false)}};
  return kForms;
}

// A matrix of random numbers, in bf16 or in tiles.
struct Weight {
  Weight(const ModelProduct& p, const Form& form) : weight(form.weight) {
    weight.n = p.n;
    weight.k = p.k;
    if (weight.kind == PackedKind::kBF16) {
      bytes = size_t{2} * p.n * p.k;
      data = memory.normal_bf16(bytes / 2);
    } else {
      bytes = quant_tiles_bytes(weight);
      std::vector<std::byte> tiles = random_tiles(std::min(bytes, size_t{1} << 26));
      data = memory.allocate<uint16_t>(bytes / 2);
      for (size_t at = 0; at < bytes; at += tiles.size()) {
        WR_CUDA(cudaMemcpy(reinterpret_cast<std::byte*>(data) + at,
                           tiles.data(),
                           std::min(tiles.size(), bytes - at),
                           cudaMemcpyHostToDevice));
      }
    }
    weight.data = reinterpret_cast<const std::byte*>(data);
  }

  // Whole tiles; numbers random, scales alike.
  [[nodiscard]] std::vector<std::byte> random_tiles(size_t most) const {
    const auto tile = static_cast<size_t>(quant_tile_bytes(weight));
    const auto numbers = static_cast<size_t>(quant_number_bytes(weight.kind));
    std::vector<std::byte> out(most / tile * tile);
    std::mt19937 rng(5);
    const float scale = weight.kind == PackedKind::kQ4 ? 2e-3F : 1e-4F;
    for (size_t at = 0; at < out.size(); at += tile) {
      for (size_t i = 0; i < numbers; ++i) {
        out[at + i] =
            static_cast<std::byte>(rng() & (weight.kind == PackedKind::kF8 ? 0xbfU : 0xffU));
      }
      const auto of_row = static_cast<size_t>(quant_scale_bytes(weight));
      for (size_t i = numbers; i < tile; i += of_row) {
        const auto row = static_cast<int64_t>((i - numbers) / of_row % kQuantTileRows);
        const uint32_t word = quant_scale_word(weight.kind, row, scale);
        const uint32_t stored = of_row == 2 || weight.has_bias ? word >> 16 : word;
        std::memcpy(out.data() + at + i, &stored, of_row);
      }
    }
    return out;
  }

  PackedWeight weight;
  size_t bytes = 0;
  BenchBuffers memory;
  uint16_t* data = nullptr;
};

class Room {
 public:
  explicit Room(const ModelProducts& model) {
    size_t inputs = 0;
    size_t outputs = 0;
    for (const ModelProduct& p : model.products) {
      const size_t rows = is_head(p) ? kMaxHeadRows : kMaxRows;
      inputs = std::max<size_t>(inputs, rows * p.k);
      outputs = std::max<size_t>(outputs, rows * p.n);
      hidden_ = p.epilogue == kAdd ? p.n : hidden_;
    }
    x_ = memory_.normal_bf16(inputs);
    residual_ = memory_.allocate<float>(inputs);
    y_ = memory_.allocate<float>(outputs);
    normed_ = memory_.normal_bf16(inputs);
    weight_ = memory_.allocate<float>(1 << 16);
    squares_ = memory_.allocate<float>(half_norm_squares(kMaxRows, hidden_));
    WR_CUDA(cudaMemset(residual_, 0x3f, inputs * sizeof(float)));
    WR_CUDA(cudaMemset(weight_, 0x3f, (size_t{1} << 16) * sizeof(float)));
    const std::vector<float> squares(half_norm_squares(kMaxRows, hidden_), 64.0F * hidden_);
    WR_CUDA(cudaMemcpy(
        squares_, squares.data(), squares.size() * sizeof(float), cudaMemcpyHostToDevice));
    WR_CUDA(cudaMemset(y_, 0, outputs * sizeof(float)));
    half_.weight = make_view<const float>(weight_, hidden_);
    half_.rows = ActView(DType::kBF16, normed_, kMaxRows, hidden_);
    half_.squares = squares_;
  }

  // Runs an operation as a model with batch invariance does.
  void run(Stream& stream, const ModelProduct& p, const PackedWeight& w, int32_t m) {
    LinearArgs args;
    const bool norm = p.norm && !is_head(p);
    args.x = norm ? ActView(DType::kF32, residual_, m, p.k)
                  : ActView(DType::kBF16, x_, kMaxRows, p.k).rows(0, m);
    if (norm) {
      args.norm_weight = make_view<const float>(weight_, p.k);
      args.half_norm = &half_;
      args.normed = ActView(DType::kBF16, normed_, m, p.k);
    }
    args.next_norm = p.epilogue == kAdd ? &half_ : nullptr;
    args.y = ActView(p.y_f32 ? DType::kF32 : DType::kBF16, y_, m, outputs_of(p));
    args.segments[0].w = w;
    args.num_segments = 1;
    args.epilogue = p.epilogue;
    args.batch_invariant = true;
    args.scratch = scratch_;
    cuda::linear(stream, args);
  }

  [[nodiscard]] Sm90GemmArgs args(const ModelProduct& p, const PackedWeight& w, int32_t m) const {
    Sm90GemmArgs out;
    out.w = w.data;
    out.x = p.norm ? static_cast<const void*>(normed_) : x_;
    out.x_stride = p.k;
    out.x_capacity = kMaxRows;
    out.y = y_;
    out.y_stride = outputs_of(p);
    out.y_f32 = p.y_f32;
    out.epilogue = p.epilogue;
    out.squares = p.norm ? squares_ : nullptr;
    out.norm_eps = 1e-6F;
    if (p.epilogue == kAdd) {
      out.next_weight = weight_;
      out.next_x = normed_;
      out.next_squares = squares_;
    }
    out.m = m;
    out.n = p.n;
    out.k = p.k;
    return out;
  }

 private:
  BenchBuffers memory_;
  std::byte* scratch_ = reinterpret_cast<std::byte*>(
      memory_.allocate<uint32_t>(linear_scratch_bytes(kMaxRows, 1) / sizeof(uint32_t)));
  int32_t hidden_ = 0;
  uint16_t* x_ = nullptr;
  float* residual_ = nullptr;
  float* y_ = nullptr;
  uint16_t* normed_ = nullptr;
  float* weight_ = nullptr;
  float* squares_ = nullptr;
  HalfNorm half_;
};

void bench_steps(Stream& stream, const ModelProducts& model, Room& room, const Form& form) {
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<size_t> order;
  size_t bytes = 0;
  constexpr int kCopies = 3;  // layers take turns; L2 holds less than one
  for (int layer = 0; layer < model.layers; ++layer) {
    for (size_t i = 0; i < 4; ++i) {
      if (layer < kCopies) {
        weights.push_back(std::make_unique<Weight>(model.products[i], form));
      }
      order.push_back(static_cast<size_t>(layer % kCopies) * 4 + i);
      bytes += weights[order.back()]->bytes;
    }
  }
  order.push_back(weights.size());
  weights.push_back(std::make_unique<Weight>(model.products[4], forms().front()));
  bytes += weights.back()->bytes;
  std::printf("%s %s: ms of a step's linears, norms and gates; read time of the weights %.3f\n",
              model.name,
              form.name,
              bytes / kReadBytesPerSecond * 1e3);
  for (const int32_t m : {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2047, 2048, 4096, kMaxRows}) {
    const int calls = static_cast<int>(order.size());
    const double us = graph_us(
        stream,
        calls,
        [&](int n) {
          const size_t at = order[n];
          const bool head = at + 1 == weights.size();
          room.run(stream,
                   model.products[head ? 4 : at % 4],
                   weights[at]->weight,
                   head ? std::min(m, kMaxHeadRows) : m);
        },
        5);
    std::printf("  m %4d  %8.3f\n", m, us * calls * 1e-3);
  }
}

void bench_products(Stream& stream, const ModelProducts& model, Room& room, const Form& form) {
  std::printf("%s %s: us an operation, parts/groups/stages\n", model.name, form.name);
  const int32_t sms = stream.device().facts().num_sms;
  for (const ModelProduct& p : model.products) {
    if (is_head(p)) {
      continue;
    }
    std::vector<std::unique_ptr<Weight>> copies;
    copies.push_back(std::make_unique<Weight>(p, form));
    const int count = std::min(8, copies_beyond_l2(copies[0]->bytes));
    while (static_cast<int>(copies.size()) < count) {
      copies.push_back(std::make_unique<Weight>(p, form));
    }
    for (const int32_t m : {1, 8, 32, 64, 128, 256, 2048}) {
      const double read = copies[0]->bytes / kReadBytesPerSecond * 1e6;
      const double flops = 2.0 * m * p.n * p.k / kBf16FlopsPerSecond * 1e6;
      std::printf("  %-8s m %4d limit %7.2f", p.name, m, std::max(read, flops));
      for (const int32_t parts : {1, 2, 4}) {
        for (const int32_t groups : {1, 3}) {
          const bool many = ceil_div(p.n, 64 * groups) * parts * ceil_div(m, 128) > 8 * sms;
          if ((parts > 1 && many) || (groups == 3 && m < 100) || (groups == 1 && m > 256)) {
            continue;
          }
          const Sm90QuantPlan plan = sm90_quant_plan(copies[0]->weight, m, sms, parts, groups);
          const double us = graph_us(
              stream,
              m > 1024 ? 2 : 4 * count,
              [&](int i) {
                const PackedWeight& w = copies[static_cast<size_t>(i % count)]->weight;
                sm90_quant_gemm(stream, room.args(p, w, m), w, plan);
              },
              3);
          std::printf(" | %d/%d/%d %.2f", parts, groups, plan.stages, us);
        }
      }
      std::printf("\n");
    }
  }
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
  const auto chosen =
      [&](std::initializer_list<const char*> names, const std::string& name, bool by_default) {
        return std::any_of(names.begin(), names.end(), has) ? has(name) : by_default;
      };
  BenchDevice on;
  std::printf("%s\n", on.device->facts().name.c_str());
  for (const ModelProducts& model : model_products()) {
    if (!chosen({"Qwen3-8B", "Qwen3-0.6B"}, model.name, std::strcmp(model.name, "Qwen3-8B") == 0)) {
      continue;
    }
    Room room(model);
    for (const Form& form : forms()) {
      const bool by_default = form.weight.group == 128 && form.weight.kind != PackedKind::kQ8;
      if (!chosen({"bf16", "f8", "q4", "q8", "q4_k", "q6_k"}, form.name, by_default)) {
        continue;
      }
      if (chosen({"steps", "products"}, "steps", true)) {
        bench_steps(*on.stream, model, room, form);
      }
      if (form.weight.kind != PackedKind::kBF16 &&
          chosen({"steps", "products"}, "products", true)) {
        bench_products(*on.stream, model, room, form);
      }
    }
  }
}
