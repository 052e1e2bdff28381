// SPDX-License-Identifier: Apache-2.0
// The operations of experts on CUDA, against sums in double on the host.
#include "base/dtype.h"
#include "base/float8.h"
#include "kernels/experts/combine_experts.h"
#include "kernels/experts/expert_linear.h"
#include "kernels/experts/fill_mxfp4.h"
#include "kernels/experts/mxfp4_tiles.h"
#include "kernels/experts/route_experts.h"
#include "kernels/linear/half_norm.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "kernels/random/fill_random.h"
#include "kernels/random/random_e2m1.h"
#include "tests/cuda/cuda_test.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;

struct Sizes {
  int32_t num_experts;
  int32_t num_chosen;
  int32_t hidden;
  int32_t inner;
};

class ExpertsCuda : public CudaTest {
 protected:
  std::vector<float> normals(size_t n, float scale = 1.0F) {
    std::normal_distribution<float> normal(0.0F, scale);
    std::vector<float> values(n);
    std::ranges::generate(values, [&] { return normal(rng_); });
    return values;
  }

  ExpertLists lists_for(const Sizes& sizes, int64_t toks) {
    const auto ints = [&](int64_t n) {
      return make_view(poisoned<int32_t>(static_cast<size_t>(std::max<int64_t>(n, 1))), n);
    };
    ExpertLists lists;
    lists.num_experts = sizes.num_experts;
    lists.num_chosen = sizes.num_chosen;
    lists.first = ints(sizes.num_experts + 1);
    lists.slots = ints(toks * sizes.num_chosen);
    lists.places = ints(toks * sizes.num_chosen);
    lists.tiles = ints(expert_tiles_room(toks, sizes.num_chosen, sizes.num_experts));
    return lists;
  }

  std::vector<int32_t> ints(const View<int32_t, 1>& view, int64_t n) {
    return download(view.data, static_cast<size_t>(n));
  }

  std::mt19937 rng_{18};
};

struct Choice {
  std::vector<int32_t> experts;
  std::vector<double> weights;
};

Choice choose(const float* logits, const Sizes& sizes, RouterScores scores, bool normalise) {
  std::vector<int32_t> order(static_cast<size_t>(sizes.num_experts));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  Choice choice;
  choice.experts.assign(order.begin(), order.begin() + sizes.num_chosen);
  double sum = 0;
  for (const int32_t e : scores == RouterScores::kSoftmax ? order : choice.experts) {
    sum += std::exp(double{logits[e]} - double{logits[order[0]]});
  }
  double of_chosen = 0;
  for (const int32_t e : choice.experts) {
    choice.weights.push_back(std::exp(double{logits[e]} - double{logits[order[0]]}) / sum);
    of_chosen += choice.weights.back();
  }
  for (double& weight : choice.weights) {
    weight /= normalise ? of_chosen : 1.0;
  }
  return choice;
}

// Choices by sigmoids (route_experts.h). scores + bias of experts that no chosen group has are left out.
struct SigmoidRule {
  std::vector<float> bias;
  int32_t num_groups = 1;
  int32_t chosen_groups = 1;
  float scale = 1.0F;
  std::vector<float> expert_scales;
};

Choice choose(const float* logits, const Sizes& sizes, const SigmoidRule& rule, bool normalise) {
  const auto count = static_cast<size_t>(sizes.num_experts);
  std::vector<float> by(count);
  const auto sigmoid = [&](size_t e) { return 1.0F / (1.0F + std::exp(-logits[e])); };
  for (size_t e = 0; e < count; ++e) {
    by[e] = sigmoid(e) + rule.bias[e];
  }
  const size_t of_group = count / static_cast<size_t>(rule.num_groups);
  std::vector<std::pair<float, size_t>> groups;
  for (size_t g = 0; g < static_cast<size_t>(rule.num_groups); ++g) {
    std::vector<float> mine(by.begin() + static_cast<std::ptrdiff_t>(g * of_group),
                            by.begin() + static_cast<std::ptrdiff_t>((g + 1) * of_group));
    std::ranges::sort(mine, std::greater<>());
    groups.emplace_back(mine[0] + mine[1], g);
  }
  std::ranges::stable_sort(groups, [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = static_cast<size_t>(rule.chosen_groups); i < groups.size(); ++i) {
    std::fill_n(by.begin() + static_cast<std::ptrdiff_t>(groups[i].second * of_group),
                of_group,
                -std::numeric_limits<float>::infinity());
  }
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    return by[static_cast<size_t>(a)] > by[static_cast<size_t>(b)];
  });
  Choice choice;
  choice.experts.assign(order.begin(), order.begin() + sizes.num_chosen);
  double sum = 1e-20;
  for (const int32_t e : choice.experts) {
    choice.weights.push_back(double{sigmoid(static_cast<size_t>(e))});
    sum += choice.weights.back();
  }
  for (size_t j = 0; j < choice.weights.size(); ++j) {
    const auto e = static_cast<size_t>(choice.experts[j]);
    choice.weights[j] *= double{rule.scale} / (normalise ? sum : 1.0);
    choice.weights[j] *= rule.expert_scales.empty() ? 1.0 : double{rule.expert_scales[e]};
  }
  return choice;
}

class RouteExpertsCuda : public ExpertsCuda {
 protected:
  void expect_routed(const Sizes& sizes,
                     const std::vector<float>& logits,
                     RouterScores scores,
                     bool normalise,
                     int64_t num_real = -1,
                     const SigmoidRule& rule = {}) {
    const int64_t toks = static_cast<int64_t>(logits.size()) / sizes.num_experts;
    const int32_t k = sizes.num_chosen;
    ExpertLists lists = lists_for(sizes, toks);
    int64_t rows = toks;
    if (num_real >= 0) {
      lists.num_rows = upload(std::vector<int32_t>{static_cast<int32_t>(num_real)});
      rows = num_real;
    }
    float* weights = poisoned<float>(static_cast<size_t>(std::max<int64_t>(toks * k, 1)));
    const float* on_device = logits.empty() ? weights : upload(logits);
    cuda::route_experts(stream(),
                        {.logits = make_view(on_device, toks, int64_t{sizes.num_experts}),
                         .weights = make_view(weights, toks, int64_t{k}),
                         .lists = lists,
                         .scores = scores,
                         .normalise = normalise,
                         .bias = vector_of(rule.bias),
                         .num_groups = rule.num_groups,
                         .chosen_groups = rule.chosen_groups,
                         .scale = rule.scale,
                         .expert_scales = vector_of(rule.expert_scales)});
    stream().synchronize();
    if (toks == 0) {
      return;
    }
    std::vector<std::vector<int32_t>> slots_of(static_cast<size_t>(sizes.num_experts));
    const std::vector<float> got = download(weights, static_cast<size_t>(toks * k));
    for (int64_t t = 0; t < rows; ++t) {
      const float* row = &logits[static_cast<size_t>(t * sizes.num_experts)];
      const Choice want = scores == RouterScores::kSigmoid ? choose(row, sizes, rule, normalise)
                                                           : choose(row, sizes, scores, normalise);
      for (int32_t j = 0; j < k; ++j) {
        const auto slot = static_cast<int32_t>(t * k + j);
        slots_of[static_cast<size_t>(want.experts[static_cast<size_t>(j)])].push_back(slot);
        EXPECT_NEAR(got[static_cast<size_t>(slot)], want.weights[static_cast<size_t>(j)], 2e-6)
            << "row " << t << " choice " << j;
      }
    }
    const std::vector<int32_t> first = ints(lists.first, sizes.num_experts + 1);
    const std::vector<int32_t> slots = ints(lists.slots, toks * k);
    const std::vector<int32_t> places = ints(lists.places, toks * k);
    const std::vector<int32_t> tiles = ints(lists.tiles, lists.tiles.shape[0]);
    const int32_t width = expert_tile_places(toks, k, sizes.num_experts, PackedKind::kBF16);
    int32_t place = 0;
    size_t tile = 0;
    for (int32_t e = 0; e < sizes.num_experts; ++e) {
      ASSERT_EQ(first[static_cast<size_t>(e)], place) << "expert " << e;
      const std::vector<int32_t>& mine = slots_of[static_cast<size_t>(e)];
      for (int32_t at = 0; at < static_cast<int32_t>(mine.size()); at += width) {
        ++tile;
        ASSERT_LT(4 * tile + 3, tiles.size());
        EXPECT_EQ(tiles[4 * tile], e);
        EXPECT_EQ(tiles[4 * tile + 1], place + at);
        EXPECT_EQ(tiles[4 * tile + 2], std::min(width, static_cast<int32_t>(mine.size()) - at));
      }
      for (const int32_t slot : mine) {
        ASSERT_EQ(slots[static_cast<size_t>(place)], slot) << "place " << place;
        ASSERT_EQ(places[static_cast<size_t>(slot)], place) << "slot " << slot;
        ++place;
      }
    }
    EXPECT_EQ(first.back(), place);
    EXPECT_EQ(tiles[0], static_cast<int32_t>(tile));
    arena().reset();
  }

 private:
  View<const float, 1> vector_of(const std::vector<float>& values) {
    return values.empty()
               ? View<const float, 1>()
               : make_view<const float>(upload(values), static_cast<int64_t>(values.size()));
  }
};

TEST_F(RouteExpertsCuda, AsTheReference) {
  for (const Sizes& sizes : {Sizes{128, 8, 0, 0},
                             Sizes{32, 4, 0, 0},
                             Sizes{8, 2, 0, 0},
                             Sizes{60, 4, 0, 0},
                             Sizes{256, 8, 0, 0},
                             Sizes{512, 10, 0, 0},
                             Sizes{1024, 32, 0, 0}}) {
    for (const int64_t toks : {0, 1, 2, 7, 33, 64, 65, 300, 2049}) {
      SCOPED_TRACE(std::to_string(sizes.num_experts) + " experts, " + std::to_string(toks));
      const auto logits = normals(static_cast<size_t>(toks * sizes.num_experts), 3.0F);
      expect_routed(sizes, logits, RouterScores::kSoftmax, toks % 2 == 0);
      expect_routed(sizes, logits, RouterScores::kSoftmaxOfChosen, false);
    }
  }
}

// Whether some scores, or some sums of groups, are so close that the rounding of an exponential may turn a choice.
bool has_close_choice(const float* logits, const Sizes& sizes, const SigmoidRule& rule) {
  const auto count = static_cast<size_t>(sizes.num_experts);
  const size_t of_group = count / static_cast<size_t>(rule.num_groups);
  std::vector<double> scores(count);
  std::vector<double> groups;
  for (size_t e = 0; e < count; ++e) {
    scores[e] = 1.0 / (1.0 + std::exp(-double{logits[e]})) + double{rule.bias[e]};
  }
  const auto is_close = [](std::vector<double>& values) {
    std::ranges::sort(values);
    return std::ranges::adjacent_find(values, [](double a, double b) { return b - a < 1e-6; }) !=
           values.end();
  };
  for (size_t first = 0; rule.num_groups > 1 && first < count; first += of_group) {
    std::vector<double> mine(scores.begin() + static_cast<std::ptrdiff_t>(first),
                             scores.begin() + static_cast<std::ptrdiff_t>(first + of_group));
    std::ranges::sort(mine, std::greater<>());
    groups.push_back(mine[0] + mine[1]);
  }
  return is_close(scores) || is_close(groups);
}

TEST_F(RouteExpertsCuda, SigmoidsAndGroupsAsTheReference) {
  struct Case {
    Sizes sizes;
    int32_t num_groups;
    int32_t chosen_groups;
  };
  for (const auto& [sizes, num_groups, chosen_groups] : {Case{{128, 8, 0, 0}, 1, 1},
                                                         Case{{160, 8, 0, 0}, 8, 3},
                                                         Case{{256, 8, 0, 0}, 8, 4},
                                                         Case{{12, 4, 0, 0}, 4, 2},
                                                         Case{{64, 6, 0, 0}, 32, 5}}) {
    for (const int64_t toks : {1, 3, 8, 50, 300}) {
      SCOPED_TRACE(std::to_string(sizes.num_experts) + " experts, " + std::to_string(toks));
      const auto count = static_cast<size_t>(sizes.num_experts);
      const auto logits_for = [&](const SigmoidRule& rule) {
        std::vector<float> logits;
        for (int64_t t = 0; t < toks; ++t) {
          std::vector<float> row = normals(count);
          while (has_close_choice(row.data(), sizes, rule)) {
            row = normals(count);
          }
          logits.insert(logits.end(), row.begin(), row.end());
        }
        return logits;
      };
      SigmoidRule rule{normals(count, 0.3F), num_groups, chosen_groups, 2.5F, normals(count)};
      expect_routed(sizes, logits_for(rule), RouterScores::kSigmoid, toks % 2 == 0, -1, rule);
      rule.bias.assign(count, 0.0F);
      rule.expert_scales.clear();
      expect_routed(sizes, logits_for(rule), RouterScores::kSigmoid, true, toks - 1, rule);
    }
  }
}

TEST_F(RouteExpertsCuda, TiesGoToTheLowerExpert) {
  const Sizes sizes{128, 8, 0, 0};
  std::vector<float> logits(3 * 128, -1.5F);
  for (const int e : {100, 40, 77}) {
    logits[static_cast<size_t>(128 + e)] = 2.0F;
  }
  expect_routed(sizes, logits, RouterScores::kSoftmax, true);
}

TEST_F(RouteExpertsCuda, AllRowsChooseTheSame) {
  const Sizes sizes{64, 2, 0, 0};
  std::vector<float> logits(size_t{500} * 64, 0.0F);
  for (size_t t = 0; t < 500; ++t) {
    logits[t * 64 + 63] = 5.0F;
    logits[t * 64 + 1] = 4.0F;
  }
  expect_routed(sizes, logits, RouterScores::kSoftmax, false);
}

TEST_F(RouteExpertsCuda, RowsThatAreNotRealChooseNothing) {
  const Sizes sizes{128, 8, 0, 0};
  for (const int64_t toks : {8, 200}) {
    for (const int64_t real : {int64_t{0}, int64_t{1}, toks - 3, toks, toks + 9}) {
      const auto logits = normals(static_cast<size_t>(toks * 128));
      expect_routed(sizes, logits, RouterScores::kSoftmax, true, std::min(real, toks));
    }
  }
}

// The router's product inside route_experts: the bits of the two operations.
TEST_F(RouteExpertsCuda, ProductInside) {
  struct Case {
    Sizes sizes;
    bool bias;
    SigmoidRule rule;  // with num_groups > 0
  };
  SigmoidRule softmax;
  softmax.num_groups = 0;
  SigmoidRule sigmoid;
  sigmoid.bias = normals(64, 0.1F);
  sigmoid.scale = 2.5F;
  int32_t inside = 0;
  for (const Case& c : {Case{{128, 8, 2048, 0}, false, softmax},
                        Case{{32, 4, 2880, 0}, true, softmax},
                        Case{{8, 2, 4096, 0}, false, softmax},
                        Case{{60, 4, 2048, 0}, false, softmax},
                        Case{{64, 6, 1024, 0}, true, sigmoid},
                        Case{{256, 8, 512, 0}, false, softmax},
                        Case{{128, 8, 320, 0}, true, softmax}}) {
    const Sizes& sizes = c.sizes;
    PackedWeight w;
    w.kind = PackedKind::kBF16;
    w.n = sizes.num_experts;
    w.k = sizes.hidden;
    const auto num_weights = static_cast<size_t>(w.n) * static_cast<size_t>(w.k);
    const std::vector<uint16_t> values = to_bf16(normals(num_weights, 0.05F));
    const std::vector<float> biases = normals(static_cast<size_t>(w.n));
    for (const int64_t toks : {1, 3, 4, 5, 8, 9, 16, 17, 31, 32, 33, 64, 65}) {
      for (const int64_t real : {toks, toks / 2}) {
        SCOPED_TRACE(fmt::format("{} experts of {}, {} of {}", w.n, w.k, real, toks));
        w.data = reinterpret_cast<const std::byte*>(upload(values));
        const float* bias = c.bias ? upload(biases) : nullptr;
        const LinearShape shape{
            w.n, w.k, DType::kF32, LinearEpilogue::kStore, c.bias, true, w.kind};
        if (!routes_with_product(stream().device().facts(), shape, toks, sizes.num_chosen, 1)) {
          EXPECT_TRUE(toks > 32 || stream().device().facts().compute_capability != 90);
          continue;
        }
        ++inside;
        const ActView x{
            DType::kBF16, upload(to_bf16(normals(static_cast<size_t>(toks * w.k)))), toks, w.k};
        const ActView logits = poisoned_act(DType::kF32, toks, w.n);
        LinearArgs linear;
        linear.x = x;
        linear.y = logits;
        linear.num_segments = 1;
        linear.segments[0].w = w;
        linear.segments[0].bias = bias;
        linear.batch_invariant = true;
        cuda::linear(stream(), linear);
        const int32_t* num_rows = upload(std::vector<int32_t>{static_cast<int32_t>(real)});
        const auto num_slots = static_cast<size_t>(real * sizes.num_chosen);
        const auto run = [&](bool product) {
          RouteExpertsArgs args;
          args.weights = make_view(poisoned<float>(static_cast<size_t>(toks * sizes.num_chosen)),
                                   toks,
                                   int64_t{sizes.num_chosen});
          args.lists = lists_for(sizes, toks);
          args.lists.num_rows = num_rows;
          args.normalise = true;
          if (c.rule.num_groups > 0) {
            args.scores = RouterScores::kSigmoid;
            args.bias = make_view<const float>(upload(c.rule.bias), int64_t{w.n});
            args.scale = c.rule.scale;
          }
          if (product) {
            args.product = {x, w, bias};
          } else {
            args.logits = logits.f32();
          }
          cuda::route_experts(stream(), args);
          stream().synchronize();
          return args;
        };
        const RouteExpertsArgs want = run(false);
        const RouteExpertsArgs got = run(true);
        EXPECT_EQ(download(want.weights.data, num_slots), download(got.weights.data, num_slots));
        EXPECT_EQ(ints(want.lists.slots, real * sizes.num_chosen),
                  ints(got.lists.slots, real * sizes.num_chosen));
        EXPECT_EQ(ints(want.lists.places, real * sizes.num_chosen),
                  ints(got.lists.places, real * sizes.num_chosen));
        EXPECT_EQ(ints(want.lists.first, w.n + 1), ints(got.lists.first, w.n + 1));
        const int64_t tiles = 4 * (1 + int64_t{ints(want.lists.tiles, 1)[0]});
        EXPECT_EQ(ints(want.lists.tiles, tiles), ints(got.lists.tiles, tiles));
        arena().reset();
      }
    }
  }
  EXPECT_TRUE(inside > 0 || stream().device().facts().compute_capability != 90);
}

// A feed-forward of experts: both products and the sum.
class ExpertProductsCuda : public ExpertsCuda {
 protected:
  struct Weights {
    std::vector<uint16_t> gate_up;  // [num_experts * 2 * inner, hidden]
    std::vector<uint16_t> down;     // [num_experts * hidden, inner]
    PackedWeight gate_up_on_device;
    PackedWeight down_on_device;
    const float* gate_up_bias = nullptr;
    const float* down_bias = nullptr;
    float gate_limit = 0.0F;
    bool gelu = false;
  };
  Weights make_weights(const Sizes& sizes) {
    Weights out;
    const auto matrix = [&](int64_t rows, int64_t cols, std::vector<uint16_t>& host) {
      host = to_bf16(
          normals(static_cast<size_t>(rows * cols), 1.0F / std::sqrt(static_cast<float>(cols))));
      PackedWeight w;
      w.kind = PackedKind::kBF16;
      w.n = static_cast<int32_t>(rows);
      w.k = static_cast<int32_t>(cols);
      w.data = reinterpret_cast<const std::byte*>(upload(host));
      return w;
    };
    const int64_t experts = sizes.num_experts;
    out.gate_up_on_device = matrix(experts * 2 * sizes.inner, sizes.hidden, out.gate_up);
    out.down_on_device = matrix(experts * sizes.hidden, sizes.inner, out.down);
    return out;
  }

  HalfNorm half_norm(int64_t toks, int64_t width) {
    HalfNorm half;
    half.weight =
        make_view(static_cast<const float*>(upload(normals(static_cast<size_t>(width)))), width);
    half.rows = poisoned_act(DType::kBF16, toks, width);
    half.squares = poisoned<float>(static_cast<size_t>(half_norm_squares(toks, width)));
    return half;
  }
  // The first half of a norm, as an operation of its own does it.
  void expect_begun(const HalfNorm& got, const View<const float, 2>& y, int64_t rows) {
    HalfNorm want = half_norm(y.shape[0], y.shape[1]);
    want.weight = got.weight;
    cuda::begin_norm(stream(), y, want);
    const auto values = static_cast<size_t>(rows * y.shape[1]);
    EXPECT_EQ(download(static_cast<uint16_t*>(got.rows.data), values),
              download(static_cast<uint16_t*>(want.rows.data), values));
    const size_t squares = values / 64 * (y.shape[0] <= kMaxQuarteredRows ? 4 : 1);
    EXPECT_EQ(download(got.squares, squares), download(want.squares, squares));
  }

  struct Run {
    std::vector<int32_t> places;
    std::vector<uint16_t> activated;  // by place
    std::vector<uint16_t> products;   // by place
    std::vector<float> weights;
    std::vector<float> sums;
  };
  // Some experts get many more rows than others.
  std::vector<float> uneven_logits(int64_t toks, int64_t num_experts) {
    std::vector<float> logits = normals(static_cast<size_t>(toks * num_experts));
    for (size_t i = 0; i < logits.size(); ++i) {
      logits[i] += i % static_cast<size_t>(num_experts) % 3 == 1 ? 2.0F : 0.0F;
    }
    return logits;
  }

  Run run(const Sizes& sizes,
          const Weights& w,
          const std::vector<uint16_t>& x,
          const std::vector<float>& logits,
          int64_t num_real = -1) {
    const int64_t toks = static_cast<int64_t>(x.size()) / sizes.hidden;
    const int64_t slots = toks * sizes.num_chosen;
    ExpertLists lists = lists_for(sizes, toks);
    lists.matrices = w.gate_up_on_device.kind == PackedKind::kBF16 ? w.down_on_device.kind
                                                                   : w.gate_up_on_device.kind;
    if (num_real >= 0) {
      lists.num_rows = upload(std::vector<int32_t>{static_cast<int32_t>(num_real)});
    }
    float* weights = poisoned<float>(static_cast<size_t>(slots));
    const ActView rows{DType::kBF16, upload(x), toks, sizes.hidden};
    const ActView activated = poisoned_act(DType::kBF16, slots, sizes.inner);
    const ActView products = poisoned_act(DType::kBF16, slots, sizes.hidden);
    const std::vector<float> ones(static_cast<size_t>(toks * sizes.hidden), 1.0F);
    float* sums = upload(ones);
    cuda::route_experts(
        stream(),
        {.logits =
             make_view(static_cast<const float*>(upload(logits)), toks, int64_t{sizes.num_experts}),
         .weights = make_view(weights, toks, int64_t{sizes.num_chosen}),
         .lists = lists,
         .normalise = true});
    cuda::expert_linear(stream(),
                        {.x = rows,
                         .x_by_row = true,
                         .w = w.gate_up_on_device,
                         .n = 2 * sizes.inner,
                         .bias = w.gate_up_bias,
                         .gate_limit = w.gate_limit,
                         .gelu = w.gelu,
                         .y = activated,
                         .epilogue = LinearEpilogue::kSwiGlu,
                         .lists = lists,
                         .gathered = poisoned_act(DType::kBF16, slots, sizes.hidden)});
    cuda::expert_linear(stream(),
                        {.x = activated,
                         .w = w.down_on_device,
                         .n = sizes.hidden,
                         .bias = w.down_bias,
                         .y = products,
                         .lists = lists});
    const bool norms = sizes.hidden % 64 == 0;
    const HalfNorm begun = norms ? half_norm(toks, sizes.hidden) : HalfNorm();
    cuda::combine_experts(
        stream(),
        {.x = products,
         .weights = make_view(static_cast<const float*>(weights), toks, int64_t{sizes.num_chosen}),
         .y = make_view(sums, toks, int64_t{sizes.hidden}),
         .lists = lists,
         .add = true,
         .next_norm = norms ? &begun : nullptr});
    if (norms) {
      expect_begun(begun,
                   make_view(static_cast<const float*>(sums), toks, int64_t{sizes.hidden}),
                   num_real >= 0 ? num_real : toks);
    }
    stream().synchronize();
    Run out;
    out.places = ints(lists.places, slots);
    out.activated =
        download(static_cast<uint16_t*>(activated.data), static_cast<size_t>(slots * sizes.inner));
    out.products =
        download(static_cast<uint16_t*>(products.data), static_cast<size_t>(slots * sizes.hidden));
    out.weights = download(weights, static_cast<size_t>(slots));
    out.sums = download(sums, static_cast<size_t>(toks * sizes.hidden));
    return out;
  }
};

float value(uint16_t bits) { return bf16_to_f32(bits); }

TEST_F(ExpertProductsCuda, AsTheReference) {
  for (const Sizes& sizes :
       {Sizes{8, 2, 128, 64}, Sizes{16, 4, 64, 96}, Sizes{5, 3, 200, 72}, Sizes{32, 8, 192, 8}}) {
    const Weights w = make_weights(sizes);
    for (const int64_t toks : {1, 3, 20, 90, 400, 1500}) {
      SCOPED_TRACE(std::to_string(sizes.num_experts) + " experts, " + std::to_string(toks));
      const std::vector<uint16_t> x = to_bf16(normals(static_cast<size_t>(toks * sizes.hidden)));
      const std::vector<float> logits = normals(static_cast<size_t>(toks * sizes.num_experts));
      const Run got = run(sizes, w, x, logits);
      for (int64_t t = 0; t < toks; t += std::max<int64_t>(1, toks / 9)) {
        const Choice choice = choose(&logits[static_cast<size_t>(t * sizes.num_experts)],
                                     sizes,
                                     RouterScores::kSoftmax,
                                     true);
        std::vector<double> sum(static_cast<size_t>(sizes.hidden), 1.0);
        for (int32_t j = 0; j < sizes.num_chosen; ++j) {
          const int64_t expert = choice.experts[static_cast<size_t>(j)];
          const auto slot = static_cast<size_t>(t * sizes.num_chosen + j);
          const auto place = static_cast<size_t>(got.places[slot]);
          for (int64_t i = 0; i < sizes.inner; ++i) {
            double gate = 0;
            double up = 0;
            for (int64_t h = 0; h < sizes.hidden; ++h) {
              const double v = value(x[static_cast<size_t>(t * sizes.hidden + h)]);
              const int64_t row = expert * 2 * sizes.inner + i;
              gate += v * value(w.gate_up[static_cast<size_t>(row * sizes.hidden + h)]);
              up +=
                  v * value(w.gate_up[static_cast<size_t>((row + sizes.inner) * sizes.hidden + h)]);
            }
            const double want = gate / (1 + std::exp(-gate)) * up;
            const float is = value(
                got.activated[place * static_cast<size_t>(sizes.inner) + static_cast<size_t>(i)]);
            ASSERT_NEAR(is, want, std::abs(want) / 200 + 1e-4)
                << "row " << t << " choice " << j << " output " << i;
          }
          for (int64_t h = 0; h < sizes.hidden; ++h) {
            double want = 0;
            for (int64_t i = 0; i < sizes.inner; ++i) {
              want +=
                  double{value(got.activated[place * static_cast<size_t>(sizes.inner) +
                                             static_cast<size_t>(i)])} *
                  value(w.down[static_cast<size_t>((expert * sizes.hidden + h) * sizes.inner + i)]);
            }
            const float is = value(
                got.products[place * static_cast<size_t>(sizes.hidden) + static_cast<size_t>(h)]);
            ASSERT_NEAR(is, want, std::abs(want) / 200 + 1e-4)
                << "row " << t << " choice " << j << " output " << h;
            sum[static_cast<size_t>(h)] += double{got.weights[slot]} * is;
          }
        }
        for (int64_t h = 0; h < sizes.hidden; ++h) {
          ASSERT_NEAR(got.sums[static_cast<size_t>(t * sizes.hidden + h)],
                      sum[static_cast<size_t>(h)],
                      1e-5);
        }
      }
    }
    arena().reset();
  }
}

// gelu in place of silu: the same kernels, another gate.
TEST_F(ExpertProductsCuda, Gelu) {
  const Sizes sizes{8, 2, 128, 64};
  Weights w = make_weights(sizes);
  w.gelu = true;
  for (const int64_t toks : {1, 40, 300, 1500}) {
    const std::vector<uint16_t> x = to_bf16(normals(static_cast<size_t>(toks * sizes.hidden)));
    const std::vector<float> logits = normals(static_cast<size_t>(toks * sizes.num_experts));
    const Run got = run(sizes, w, x, logits);
    for (int64_t t = 0; t < toks; t += std::max<int64_t>(1, toks / 7)) {
      const Choice choice = choose(
          &logits[static_cast<size_t>(t * sizes.num_experts)], sizes, RouterScores::kSoftmax, true);
      const int64_t expert = choice.experts[0];
      const auto place = static_cast<size_t>(got.places[static_cast<size_t>(t * 2)]);
      for (int64_t i = 0; i < sizes.inner; ++i) {
        double gate = 0;
        double up = 0;
        for (int64_t h = 0; h < sizes.hidden; ++h) {
          const double v = value(x[static_cast<size_t>(t * sizes.hidden + h)]);
          const int64_t row = expert * 2 * sizes.inner + i;
          gate += v * value(w.gate_up[static_cast<size_t>(row * sizes.hidden + h)]);
          up += v * value(w.gate_up[static_cast<size_t>((row + sizes.inner) * sizes.hidden + h)]);
        }
        const double u = std::sqrt(2.0 / 3.14159265358979) * (gate + 0.044715 * gate * gate * gate);
        const double want = gate / 2 * (1 + std::tanh(u)) * up;
        const float is = value(got.activated[place * 64 + static_cast<size_t>(i)]);
        ASSERT_NEAR(is, want, std::abs(want) / 200 + 1e-3) << "row " << t << " output " << i;
      }
    }
  }
}

// Matrices of MXFP4 yield what the same numbers in bf16 yield, bit for bit, with biases and gpt-oss's gate.
TEST_F(ExpertProductsCuda, Mxfp4AsBf16) {
  for (const auto& [sizes, order] : {std::pair{Sizes{8, 2, 128, 64}, Mxfp4Rows::kHalves},
                                     std::pair{Sizes{16, 4, 96, 96}, Mxfp4Rows::kAlternating},
                                     std::pair{Sizes{32, 4, 160, 288}, Mxfp4Rows::kAlternating},
                                     std::pair{Sizes{8, 2, 1152, 704}, Mxfp4Rows::kAlternating},
                                     std::pair{Sizes{4, 2, 4128, 32}, Mxfp4Rows::kHalves}}) {
    const auto matrix = [&](int64_t rows, int64_t cols, Mxfp4Rows rows_order) {
      std::uniform_int_distribution<int> byte(0, 255);
      std::uniform_int_distribution<int> scale(115, 128);
      const int64_t experts = sizes.num_experts;
      std::vector<uint8_t> numbers(static_cast<size_t>(experts * rows * cols / 2));
      std::vector<uint8_t> scales(static_cast<size_t>(experts * rows * cols / 32));
      std::ranges::generate(numbers, [&] { return static_cast<uint8_t>(byte(rng_)); });
      std::ranges::generate(scales, [&] { return static_cast<uint8_t>(scale(rng_)); });
      constexpr float kNumbers[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
      std::vector<uint16_t> plain(static_cast<size_t>(experts * rows * cols));
      for (int64_t row = 0; row < experts * rows; ++row) {
        // Gate rows, then up rows.
        const int64_t in = row % rows;
        const int64_t to =
            rows_order == Mxfp4Rows::kAlternating ? row - in + in % 2 * (rows / 2) + in / 2 : row;
        for (int64_t col = 0; col < cols; ++col) {
          const auto at = static_cast<size_t>(row * cols + col);
          const int number = numbers[at / 2] >> (at % 2 * 4) & 15;
          const float v = std::ldexp(kNumbers[number % 8], scales[at / 32] - 127);
          plain[static_cast<size_t>(to * cols + col)] = f32_to_bf16(number < 8 ? v : -v);
        }
      }
      const size_t of_expert = mxfp4_tiles_bytes(rows, cols);
      const size_t of_tile = mxfp4_tiles_bytes(1, cols);
      std::vector<uint8_t> tiles(of_expert * static_cast<size_t>(experts));
      for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
        for (size_t tile = 0; tile * of_tile < of_expert; ++tile) {
          EXPECT_TRUE(
              pack_mxfp4_tiles(std::span(numbers).subspan(e * static_cast<size_t>(rows * cols / 2),
                                                          static_cast<size_t>(rows * cols / 2)),
                               std::span(scales).subspan(e * static_cast<size_t>(rows * cols / 32),
                                                         static_cast<size_t>(rows * cols / 32)),
                               rows,
                               cols,
                               rows_order,
                               static_cast<int64_t>(tile),
                               std::span(tiles).subspan(e * of_expert + tile * of_tile, of_tile)));
        }
      }
      PackedWeight packed;
      packed.n = static_cast<int32_t>(experts * rows);
      packed.k = static_cast<int32_t>(cols);
      packed.kind = PackedKind::kBF16;
      packed.data = reinterpret_cast<const std::byte*>(upload(plain));
      PackedWeight tiled = packed;
      tiled.kind = PackedKind::kMxfp4;
      tiled.data = reinterpret_cast<const std::byte*>(upload(tiles));
      return std::pair{packed, tiled};
    };
    const auto gate_up = matrix(2 * sizes.inner, sizes.hidden, order);
    const auto down = matrix(sizes.hidden, sizes.inner, Mxfp4Rows::kPlain);
    Weights plain;
    plain.gate_up_on_device = gate_up.first;
    plain.down_on_device = down.first;
    plain.gate_up_bias =
        upload(normals(static_cast<size_t>(sizes.num_experts * 2 * sizes.inner), 3.0F));
    plain.down_bias = upload(normals(static_cast<size_t>(sizes.num_experts * sizes.hidden)));
    plain.gate_limit = 7.0F;
    Weights tiled = plain;
    tiled.gate_up_on_device = gate_up.second;
    tiled.down_on_device = down.second;
    const std::vector<std::pair<int64_t, int64_t>> counts = {{1, -1},
                                                             {5, -1},
                                                             {5, 0},
                                                             {30, -1},
                                                             {60, -1},
                                                             {60, 17},
                                                             {120, -1},
                                                             {170, -1},
                                                             {260, -1},
                                                             {900, -1}};
    for (const auto& [toks, num_real] : counts) {
      SCOPED_TRACE(std::to_string(sizes.num_experts) + " experts, " + std::to_string(toks) + ", " +
                   std::to_string(num_real));
      const std::vector<uint16_t> x =
          to_bf16(normals(static_cast<size_t>(toks * sizes.hidden), 0.05F));
      const std::vector<float> logits = uneven_logits(toks, sizes.num_experts);
      const Run as_bf16 = run(sizes, plain, x, logits, num_real);
      const Run as_mxfp4 = run(sizes, tiled, x, logits, num_real);
      EXPECT_EQ(as_bf16.activated, as_mxfp4.activated);
      EXPECT_EQ(as_bf16.products, as_mxfp4.products);
      EXPECT_EQ(as_bf16.sums, as_mxfp4.sums);
      EXPECT_TRUE(std::ranges::none_of(as_bf16.sums, [](float v) { return std::isnan(v); }));
    }
    arena().reset();
  }
}

// Matrices in tiles of linear operations yield what their weights in bf16 (quant_weight) yield, bit for bit.
TEST_F(ExpertProductsCuda, QuantisedAsBf16) {
  using enum ScaleForm;
  struct Case {
    Sizes sizes;
    PackedKind kind;
    int32_t group = 128;
    bool zeros = false;
    ScaleForm scales = kF16;  // kBF16: as GGUF's types have them, kF32 for kTable
    bool biases = false;
  };
  const auto matrix = [&](const Case& c, int64_t rows, int64_t cols) {
    PackedWeight plain;
    plain.n = static_cast<int32_t>(c.sizes.num_experts * rows);
    plain.k = static_cast<int32_t>(cols);
    plain.kind = PackedKind::kBF16;
    PackedWeight tiled = plain;
    tiled.kind = c.kind;
    tiled.group = c.group;
    tiled.has_zero_points = c.zeros;
    tiled.scales = c.scales;
    tiled.has_bias = c.biases;
    static constexpr int8_t kNumbers[16] = {
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const bool table = c.kind == PackedKind::kTable;
    tiled.numbers = table ? kNumbers : nullptr;
    tiled.zero_point = c.biases                    ? 0
                       : c.kind == PackedKind::kQ4 ? 8
                       : c.kind == PackedKind::kQ6 ? 32
                       : c.kind == PackedKind::kQ8 ? 128
                                                   : 0;
    const int largest = c.kind == PackedKind::kQ4 || table ? 15
                        : c.kind == PackedKind::kQ6        ? 63
                                                           : 255;
    std::uniform_int_distribution<int> number(0, largest);
    const float most = c.kind == PackedKind::kQ4   ? 2e-2F
                       : c.kind == PackedKind::kQ6 ? 4e-3F
                                                   : 1e-3F;
    std::uniform_real_distribution<float> scale(most / 10, most);
    std::uniform_real_distribution<float> bias(-0.1F, 0.1F);
    const auto groups = static_cast<size_t>((cols + c.group - 1) / c.group);
    std::vector<uint16_t> values;
    values.reserve(static_cast<size_t>(plain.n) * static_cast<size_t>(cols));
    std::vector<std::byte> tiles(quant_tiles_bytes(tiled));
    const size_t of_tile_row = quant_row_bytes(tiled);
    for (size_t tile = 0; tile * of_tile_row < tiles.size(); ++tile) {
      std::vector<uint8_t> numbers(static_cast<size_t>(kQuantTileRows * cols));
      std::vector<float> scales(kQuantTileRows * groups);
      std::vector<uint8_t> zeros(kQuantTileRows * groups, static_cast<uint8_t>(tiled.zero_point));
      // Float32 scales have so few bits that products with numbers are exact.
      std::ranges::generate(scales, [&] {
        const float of_group = scale(rng_);
        return c.scales == kF32    ? std::ldexp(std::round(std::ldexp(of_group, 20)), -20)
               : c.scales == kBF16 ? bf16_to_f32(f32_to_bf16(of_group))
                                   : of_group;
      });
      std::vector<float> biases(scales.size());
      std::ranges::generate(
          biases, [&] { return c.biases ? bf16_to_f32(f32_to_bf16(bias(rng_))) : -0.0F; });
      if (c.zeros) {
        std::ranges::generate(zeros, [&] { return static_cast<uint8_t>(number(rng_)); });
      }
      for (size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = static_cast<uint8_t>(number(rng_));
        const size_t row = i / static_cast<size_t>(cols);
        const size_t at =
            row * groups + i % static_cast<size_t>(cols) / static_cast<size_t>(c.group);
        float value = static_cast<float>(numbers[i]) - static_cast<float>(zeros[at]);
        if (table) {
          value = static_cast<float>(kNumbers[numbers[i]]);
        }
        if (c.kind == PackedKind::kF8) {
          numbers[i] = (numbers[i] & 0x7fU) == 0x7fU ? 0 : numbers[i];  // no NaN
          value = f8_e4m3_to_f32(numbers[i]);
        }
        values.push_back(c.scales == kF16 ? quant_weight(value, scales[at])
                                          : quant_weight(value, scales[at], biases[at]));
      }
      pack_quant_tiles(tiled,
                       kQuantTileRows,
                       {.numbers = numbers.data(),
                        .scales = scales.data(),
                        .zeros = zeros.data(),
                        .biases = biases.data()},
                       std::span(tiles).subspan(tile * of_tile_row, of_tile_row));
    }
    plain.data = reinterpret_cast<const std::byte*>(upload(values));
    tiled.data = upload(tiles);
    return std::pair{plain, tiled};
  };
  for (const Case& c : {Case{{8, 2, 128, 64}, PackedKind::kF8},
                        Case{{16, 4, 272, 80}, PackedKind::kF8},
                        Case{{32, 8, 2048, 768}, PackedKind::kF8},
                        Case{{4, 2, 80, 16}, PackedKind::kF8},
                        Case{{16, 4, 272, 80}, PackedKind::kF8, 128, false, kBF16},
                        Case{{32, 8, 2048, 768}, PackedKind::kF8, 128, false, kBF16},
                        Case{{16, 4, 272, 80}, PackedKind::kQ8, 128},
                        Case{{8, 2, 512, 256}, PackedKind::kQ8, 32, true},
                        Case{{16, 4, 272, 80}, PackedKind::kQ4, 128},
                        Case{{8, 2, 512, 256}, PackedKind::kQ4, 32, true},
                        Case{{32, 8, 1024, 320}, PackedKind::kQ4, 64, true},
                        Case{{8, 2, 512, 256}, PackedKind::kQ4, 32},
                        Case{{8, 2, 512, 256}, PackedKind::kQ4, 32, false, kBF16},
                        Case{{16, 4, 272, 80}, PackedKind::kQ4, 128, true, kBF16},
                        Case{{8, 2, 512, 256}, PackedKind::kQ8, 64, true, kBF16},
                        Case{{8, 2, 512, 256}, PackedKind::kQ4, 32, false, kBF16, true},
                        Case{{32, 8, 2048, 768}, PackedKind::kQ4, 32, false, kBF16, true},
                        Case{{16, 4, 272, 80}, PackedKind::kQ4, 16, false, kBF16, true},
                        Case{{16, 4, 288, 96}, PackedKind::kQ4, 32, false, kBF16},
                        Case{{16, 4, 288, 96}, PackedKind::kTable, 32, false, kF32},
                        Case{{8, 2, 512, 256}, PackedKind::kTable, 16, false, kF32},
                        Case{{8, 2, 512, 256}, PackedKind::kQ6, 16, false, kBF16},
                        Case{{16, 4, 288, 96}, PackedKind::kQ6, 32, false, kBF16, true},
                        Case{{8, 2, 512, 256}, PackedKind::kQ8, 32, false, kBF16},
                        Case{{16, 4, 272, 80}, PackedKind::kQ8, 16, false, kBF16, true}}) {
    const Sizes& sizes = c.sizes;
    const auto gate_up = matrix(c, 2 * sizes.inner, sizes.hidden);
    const auto down = matrix(c, sizes.hidden, sizes.inner);
    Weights plain;
    plain.gate_up_on_device = gate_up.first;
    plain.down_on_device = down.first;
    Weights tiled = plain;
    tiled.gate_up_on_device = gate_up.second;
    tiled.down_on_device = down.second;
    Weights mixed = plain;  // one of the products
    mixed.down_on_device = down.second;
    const std::vector<std::pair<int64_t, int64_t>> counts = {
        {1, -1}, {2, -1}, {5, -1}, {5, 0}, {16, 13}, {30, 17}, {60, -1}, {170, -1}, {900, 890}};
    for (const auto& [toks, num_real] : counts) {
      SCOPED_TRACE(std::to_string(static_cast<int>(c.kind)) + " in groups of " +
                   std::to_string(c.group) +
                   (c.scales == kF32    ? " with float32 scales, "
                    : c.scales == kBF16 ? " with bf16 scales, "
                                        : ", ") +
                   std::to_string(sizes.num_experts) + " experts, " + std::to_string(toks) + ", " +
                   std::to_string(num_real));
      const std::vector<uint16_t> x = to_bf16(normals(static_cast<size_t>(toks * sizes.hidden)));
      const std::vector<float> logits = uneven_logits(toks, sizes.num_experts);
      const Run as_bf16 = run(sizes, plain, x, logits, num_real);
      const Run in_tiles = run(sizes, tiled, x, logits, num_real);
      EXPECT_EQ(as_bf16.activated, in_tiles.activated);
      EXPECT_EQ(as_bf16.products, in_tiles.products);
      EXPECT_EQ(as_bf16.sums, in_tiles.sums);
      EXPECT_EQ(as_bf16.sums, run(sizes, mixed, x, logits, num_real).sums);
      EXPECT_TRUE(std::ranges::none_of(as_bf16.sums, [](float v) { return std::isnan(v); }));
    }
    arena().reset();
  }
}

// Random tiles are those of the same numbers packed on the host.
TEST_F(ExpertProductsCuda, RandomTilesAsPacked) {
  for (const auto& [rows, cols, order] : {std::tuple{128, 96, Mxfp4Rows::kAlternating},
                                          std::tuple{80, 64, Mxfp4Rows::kPlain},
                                          std::tuple{96, 160, Mxfp4Rows::kHalves}}) {
    constexpr uint64_t kSeed = 77;
    constexpr int64_t kFirst = 1024;
    std::vector<uint8_t> numbers(static_cast<size_t>(rows * cols / 2));
    const std::vector<uint8_t> scales(static_cast<size_t>(rows * cols / 32), 121);
    for (int64_t i = 0; i < int64_t{rows} * cols; ++i) {
      float quad[4];
      random_quad(kSeed, (kFirst + i) / 4, kE2m1Deviation, quad);
      const uint32_t number = e2m1_of_twice(nearest_e2m1(quad[(kFirst + i) % 4]));
      numbers[static_cast<size_t>(i / 2)] |= static_cast<uint8_t>(number << (i % 2 * 4));
    }
    std::vector<uint8_t> want(mxfp4_tiles_bytes(rows, cols));
    const size_t of_tile = mxfp4_tiles_bytes(1, cols);
    for (size_t tile = 0; tile * of_tile < want.size(); ++tile) {
      EXPECT_TRUE(pack_mxfp4_tiles(numbers,
                                   scales,
                                   rows,
                                   cols,
                                   order,
                                   static_cast<int64_t>(tile),
                                   std::span(want).subspan(tile * of_tile, of_tile)));
    }
    uint8_t* got = poisoned<uint8_t>(want.size());
    cuda::fill_mxfp4(stream(), {got, rows, cols, order, kSeed, kFirst, cols, 121});
    EXPECT_EQ(download(got, want.size()), want);
  }
}

// A row has the same bits alone, among few and among many rows.
TEST_F(ExpertProductsCuda, BatchInvariantRows) {
  for (const Sizes& sizes : {Sizes{16, 4, 512, 256}, Sizes{64, 8, 1024, 160}}) {
    const Weights w = make_weights(sizes);
    constexpr int64_t kRows = 1000;
    const std::vector<uint16_t> x = to_bf16(normals(static_cast<size_t>(kRows * sizes.hidden)));
    const std::vector<float> logits = normals(static_cast<size_t>(kRows * sizes.num_experts));
    const Run all = run(sizes, w, x, logits);
    for (const int64_t count : {1, 2, 9, 40, 130, 300}) {
      for (const int64_t first : {int64_t{0}, kRows - count}) {
        SCOPED_TRACE(std::to_string(count) + " rows from " + std::to_string(first));
        const auto part = [&](const auto& values, int64_t width) {
          return std::vector(values.begin() + first * width,
                             values.begin() + (first + count) * width);
        };
        const Run some = run(sizes, w, part(x, sizes.hidden), part(logits, sizes.num_experts));
        EXPECT_EQ(some.weights, part(all.weights, sizes.num_chosen));
        EXPECT_EQ(some.sums, part(all.sums, sizes.hidden));
      }
    }
    // Rows behind the real ones change nothing.
    const auto head = [&](const auto& values, int64_t width) {
      return std::vector(values.begin(), values.begin() + 64 * width);
    };
    const Run padded = run(sizes, w, head(x, sizes.hidden), head(logits, sizes.num_experts), 17);
    const auto real = static_cast<std::ptrdiff_t>(17) * sizes.hidden;
    EXPECT_TRUE(std::equal(padded.sums.begin(), padded.sums.begin() + real, all.sums.begin()));
    EXPECT_TRUE(std::all_of(
        padded.sums.begin() + real, padded.sums.end(), [](float v) { return v == 1.0F; }));
    arena().reset();
  }
}

}  // namespace
}  // namespace warprow
