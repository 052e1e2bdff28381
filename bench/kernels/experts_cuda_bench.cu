// SPDX-License-Identifier: Apache-2.0
// A feed-forward of experts at the shapes of models, operation by operation and as one. Each launch has its own router
// logits, so that L2 serves no more of the weights than in a real step. Beside the times stands the read time of the
// matrices of all experts that a row chose, at the measured rate of one H200, or the time of their FLOPs.
#include "kernels/experts/combine_experts.h"
#include "kernels/experts/expert_linear.h"
#include "kernels/experts/mxfp4_tiles.h"
#include "kernels/experts/route_experts.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string_view>
#include <vector>

#include "bench/kernels/cuda_timing.h"

namespace warprow::cuda {
namespace {

struct Model {
  const char* name;
  int32_t num_experts;
  int32_t num_chosen;
  int32_t hidden;
  int32_t inner;
  PackedKind kind;
  // GGUF's types: inputs of a group, and whether groups have biases.
  int32_t group = 0;
  bool biases = false;

  [[nodiscard]] PackedWeight form(int32_t rows, int32_t cols) const {
    PackedWeight w;
    w.kind = kind;
    w.group = group > 0 ? group : 128;
    w.scales = kind == PackedKind::kTable ? ScaleForm::kF32 : ScaleForm::kBF16;
    w.has_bias = biases;
    w.zero_point = kind == PackedKind::kQ4 && !biases ? 8 : 0;
    w.n = rows;
    w.k = cols;
    return w;
  }
  // Of an expert's matrix.
  [[nodiscard]] size_t bytes(int32_t rows, int32_t cols) const {
    return kind == PackedKind::kMxfp4 ? mxfp4_tiles_bytes(rows, cols)
           : has_quant_tiles(kind)    ? quant_tiles_bytes(form(rows, cols))
                                      : size_t{2} * rows * cols;
  }
};
constexpr Model kModels[] = {{"Qwen3-30B-A3B", 128, 8, 2048, 768, PackedKind::kBF16},
                             {"Qwen3-30B-A3B FP8", 128, 8, 2048, 768, PackedKind::kF8},
                             {"Qwen3-30B-A3B INT4", 128, 8, 2048, 768, PackedKind::kQ4},
                             {"Qwen3-30B-A3B Q4_K", 128, 8, 2048, 768, PackedKind::kQ4, 32, true},
                             {"Qwen3-30B-A3B Q6_K", 128, 8, 2048, 768, PackedKind::kQ6, 16},
                             {"Qwen3-30B-A3B Q8_0", 128, 8, 2048, 768, PackedKind::kQ8, 32},
                             {"gpt-oss-20b", 32, 4, 2880, 2880, PackedKind::kMxfp4}};
constexpr int64_t kToks[] = {1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 512, 1024, 8192};

class Layer {
 public:
  Layer(const Model& model, int64_t toks, int calls) : model_(model), toks_(toks) {
    const int64_t slots = toks * model.num_chosen;
    weights_ = make_view(buffers_.allocate<float>(slots), toks, int64_t{model.num_chosen});
    lists_.num_experts = model.num_experts;
    lists_.num_chosen = model.num_chosen;
    lists_.matrices = model.kind;
    lists_.first = ints(model.num_experts + 1);
    lists_.slots = ints(slots);
    lists_.places = ints(slots);
    lists_.tiles = ints(expert_tiles_room(toks, model.num_chosen, model.num_experts));
    x_ = {DType::kBF16, buffers_.normal_bf16(toks * model.hidden), toks, model.hidden};
    activated_ = {
        DType::kBF16, buffers_.allocate<uint16_t>(slots * model.inner), slots, model.inner};
    products_ = {
        DType::kBF16, buffers_.allocate<uint16_t>(slots * model.hidden), slots, model.hidden};
    y_ = make_view(buffers_.allocate<float>(toks * model.hidden), toks, int64_t{model.hidden});
    std::mt19937 rng(11);
    std::normal_distribution<float> normal;
    int64_t active = 0;
    for (int i = 0; i < calls; ++i) {
      std::vector<float> logits(toks * model.num_experts);
      std::set<int> chosen;
      for (int64_t t = 0; t < toks; ++t) {
        std::vector<std::pair<float, int>> row(model.num_experts);
        for (int e = 0; e < model.num_experts; ++e) {
          row[e] = {normal(rng), e};
          logits[t * model.num_experts + e] = row[e].first;
        }
        std::partial_sort(row.begin(), row.begin() + model.num_chosen, row.end(), std::greater<>());
        for (int j = 0; j < model.num_chosen; ++j) {
          chosen.insert(row[j].second);
        }
      }
      active += static_cast<int64_t>(chosen.size());
      logits_.push_back(
          make_view<const float>(buffers_.upload(logits), toks, int64_t{model.num_experts}));
    }
    mean_active_ = static_cast<double>(active) / calls;
  }
  void set_matrices(const std::byte* gate_up, const std::byte* down) {
    gate_up_ = matrix(gate_up, 2 * model_.inner, model_.hidden);
    down_ = matrix(down, model_.hidden, model_.inner);
  }

  void route(Stream& stream, int call) const {
    cuda::route_experts(
        stream, {.logits = logits_[call], .weights = weights_, .lists = lists_, .normalise = true});
  }
  void gate_up(Stream& stream) const {
    cuda::expert_linear(stream,
                        {.x = x_,
                         .x_by_row = true,
                         .w = gate_up_,
                         .n = 2 * model_.inner,
                         .y = activated_,
                         .epilogue = LinearEpilogue::kSwiGlu,
                         .lists = lists_,
                         .gathered = products_});
  }
  void down(Stream& stream) const {
    cuda::expert_linear(
        stream, {.x = activated_, .w = down_, .n = model_.hidden, .y = products_, .lists = lists_});
  }
  void combine(Stream& stream) const {
    cuda::combine_experts(
        stream, {.x = products_, .weights = weights_, .y = y_, .lists = lists_, .add = true});
  }
  // Of both products.
  [[nodiscard]] double limit_us() const {
    const double of_expert = 3.0 * model_.hidden * model_.inner;
    const auto bytes = static_cast<double>(model_.bytes(2 * model_.inner, model_.hidden) +
                                           model_.bytes(model_.hidden, model_.inner));
    const double read = mean_active_ * bytes / kReadBytesPerSecond;
    const double flops = toks_ * model_.num_chosen * of_expert * 2 / kBf16FlopsPerSecond;
    return std::max(read, flops) * 1e6;
  }
  [[nodiscard]] double mean_active() const { return mean_active_; }

 private:
  View<int32_t, 1> ints(int64_t n) { return make_view(buffers_.allocate<int32_t>(n), n); }
  PackedWeight matrix(const std::byte* data, int32_t rows, int32_t cols) const {
    PackedWeight w = model_.form(model_.num_experts * rows, cols);
    w.data = data;
    return w;
  }

  const Model& model_;
  int64_t toks_;
  BenchBuffers buffers_;
  View<float, 2> weights_;
  ExpertLists lists_;
  ActView x_;
  ActView activated_;
  ActView products_;
  View<float, 2> y_;
  std::vector<View<const float, 2>> logits_;
  PackedWeight gate_up_;
  PackedWeight down_;
  double mean_active_ = 0;
};

void measure(const Model& model) {
  BenchDevice bench;
  Stream& stream = *bench.stream;
  BenchBuffers buffers;
  const auto matrices = [&](int32_t rows, int32_t cols) {
    const size_t bytes = model.num_experts * model.bytes(rows, cols);
    if (model.kind == PackedKind::kBF16) {
      return reinterpret_cast<const std::byte*>(buffers.normal_bf16(bytes / 2));
    }
    std::vector<uint8_t> tiles(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      const auto number = static_cast<uint8_t>(i * 2654435761U >> 13);
      const bool is_scale = i % kMxfp4TileBytes >= kMxfp4NumberBytes;
      // Scales of linear operations' tiles are finite with any bytes below 64.
      tiles[i] = model.kind != PackedKind::kMxfp4 ? number % 64 : is_scale ? 118 + 126 : number;
    }
    return reinterpret_cast<const std::byte*>(buffers.upload(tiles));
  };
  const std::byte* gate_up = matrices(2 * model.inner, model.hidden);
  const std::byte* down = matrices(model.hidden, model.inner);
  std::printf("%s: %d of %d experts, %d x %d; microseconds\n",
              model.name,
              model.num_chosen,
              model.num_experts,
              model.hidden,
              model.inner);
  std::printf("%6s %7s %7s %7s %7s %7s %7s %8s %6s\n",
              "rows",
              "active",
              "route",
              "gate+up",
              "down",
              "combine",
              "all",
              "limit",
              "ratio");
  for (const int64_t toks : kToks) {
    const int calls = toks > 512 ? 4 : 32;
    Layer layer(model, toks, calls);
    layer.set_matrices(gate_up, down);
    const auto all = [&](int i) {
      layer.route(stream, i);
      layer.gate_up(stream);
      layer.down(stream);
      layer.combine(stream);
    };
    // A product alone has another step's lists in front, as its w depends on them.
    const double route = graph_us(stream, calls, [&](int i) { layer.route(stream, i); });
    const double to_gate = graph_us(stream, calls, [&](int i) {
      layer.route(stream, i);
      layer.gate_up(stream);
    });
    const double to_down = graph_us(stream, calls, [&](int i) {
      layer.route(stream, i);
      layer.gate_up(stream);
      layer.down(stream);
    });
    const double whole = graph_us(stream, calls, all);
    std::printf("%6ld %7.1f %7.2f %7.2f %7.2f %7.2f %7.2f %8.2f %6.2f\n",
                static_cast<long>(toks),
                layer.mean_active(),
                route,
                to_gate - route,
                to_down - to_gate,
                whole - to_down,
                whole,
                layer.limit_us(),
                whole / layer.limit_us());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace warprow::cuda

// An argument chooses models by a part of their names.
int main(int argc, char** argv) {
  for (const warprow::cuda::Model& model : warprow::cuda::kModels) {
    if (argc < 2 || std::string_view(model.name).find(argv[1]) != std::string_view::npos) {
      warprow::cuda::measure(model);
    }
  }
  return 0;
}
