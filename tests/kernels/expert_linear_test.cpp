// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/expert_linear.h"

#include "base/check.h"
#include "tests/kernels/cpu_harness.h"
#include "tests/kernels/linear_fixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using namespace linear_test;

constexpr float kUnwrittenOutput = -777.0F;

// Which experts each row has, and the lists that follow.
struct Choices {
  Choices(int32_t of_experts, int32_t chosen, std::vector<int32_t> expert_of_slot)
      : num_experts(of_experts), num_chosen(chosen), expert(std::move(expert_of_slot)) {
    slots.resize(expert.size());
    std::iota(slots.begin(), slots.end(), 0);
    std::ranges::stable_sort(slots, {}, [this](int32_t slot) { return expert_of(slot); });
    places.resize(expert.size());
    for (size_t place = 0; place < slots.size(); ++place) {
      places[static_cast<size_t>(slots[place])] = static_cast<int32_t>(place);
    }
    for (int32_t e = 0; e <= num_experts; ++e) {
      first.push_back(static_cast<int32_t>(
          std::ranges::count_if(expert, [e](int32_t other) { return other < e; })));
    }
  }
  [[nodiscard]] int32_t expert_of(int32_t slot) const { return expert[static_cast<size_t>(slot)]; }
  [[nodiscard]] int64_t num_rows() const {
    return static_cast<int64_t>(expert.size()) / num_chosen;
  }
  ExpertLists lists() {
    return {num_experts,
            num_chosen,
            make_view(first.data(), static_cast<int64_t>(first.size())),
            make_view(slots.data(), static_cast<int64_t>(slots.size())),
            make_view(places.data(), static_cast<int64_t>(places.size())),
            nullptr};
  }

  int32_t num_experts;
  int32_t num_chosen;
  std::vector<int32_t> expert;  // of each slot
  std::vector<int32_t> first, slots, places;
};

Choices random_choices(std::mt19937& rng, int64_t rows, int32_t num_experts, int32_t num_chosen) {
  std::vector<int32_t> expert;
  std::vector<int32_t> all(static_cast<size_t>(num_experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < rows; ++t) {
    std::shuffle(all.begin(), all.end(), rng);
    expert.insert(expert.end(), all.begin(), all.begin() + num_chosen);
  }
  return {num_experts, num_chosen, expert};
}

struct ExpertCall {
  const TestWeight& weight;
  int32_t n;
  ActFormat act = ActFormat::kF32;
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  bool by_row = true;
  int64_t padding = 0;  // rows of x behind the real ones
  const std::vector<float>* bias = nullptr;
  float gate_limit = 0.0F;

  // y by place; rows of padding stay unwritten.
  std::vector<float> operator()(InlineDevice& d,
                                Choices& choices,
                                const std::vector<float>& x) const {
    const int64_t k = weight.w.k;
    const int64_t places =
        static_cast<int64_t>(choices.slots.size()) + padding * choices.num_chosen;
    const int64_t x_rows = by_row ? choices.num_rows() + padding : places;
    std::vector<float> padded = x;
    padded.resize(static_cast<size_t>(x_rows * k), std::nanf(""));
    const int64_t width = epilogue == LinearEpilogue::kSwiGlu ? n / 2 : n;
    std::vector<float> y(static_cast<size_t>(places * width), kUnwrittenOutput);
    std::vector<float> product(static_cast<size_t>(places * n));
    AlignedBytes scratch(cpu::linear_scratch_bytes(places, k));
    const auto real = static_cast<int32_t>(choices.num_rows());
    ExpertLinearArgs args;
    args.x = make_view<const float>(padded.data(), x_rows, k);
    args.x_by_row = by_row;
    args.w = weight.w;
    args.n = n;
    args.y = make_view(y.data(), places, width);
    args.epilogue = epilogue;
    args.act = act;
    args.bias = bias == nullptr ? nullptr : bias->data();
    args.gate_limit = gate_limit;
    args.lists = choices.lists();
    args.lists.num_rows = &real;
    args.product = make_view(product.data(), places, int64_t{n});
    args.scratch = scratch.data();
    expert_linear(*d.stream, args);
    return y;
  }
};

// The same with the operation of a dense layer, for each place alone.
std::vector<float> dense(InlineDevice& d,
                         const ExpertCall& call,
                         const Choices& choices,
                         const std::vector<float>& x) {
  const auto k = static_cast<size_t>(call.weight.w.k);
  const auto n = static_cast<size_t>(call.n);
  std::vector<float> y;
  for (size_t place = 0; place < choices.slots.size(); ++place) {
    const int32_t slot = choices.slots[place];
    const size_t row = call.by_row ? static_cast<size_t>(slot / choices.num_chosen) : place;
    PackedWeight w = call.weight.w;
    w.n = call.n;
    w.data += cpu::packed_bytes(w) * static_cast<size_t>(choices.expert_of(slot));
    const auto from = x.begin() + static_cast<long>(row * k);
    std::vector<float> p = run_linear(d, w, {from, from + static_cast<long>(k)}, call.act);
    for (size_t j = 0; call.bias != nullptr && j < n; ++j) {
      p[j] += (*call.bias)[static_cast<size_t>(choices.expert_of(slot)) * n + j];
    }
    if (call.epilogue == LinearEpilogue::kStore) {
      y.insert(y.end(), p.begin(), p.end());
      continue;
    }
    for (size_t j = 0; j < n / 2; ++j) {
      if (call.gate_limit > 0.0F) {
        const float g = std::min(p[j], call.gate_limit);
        const float u = std::clamp(p[n / 2 + j], -call.gate_limit, call.gate_limit);
        y.push_back((u + 1.0F) * g / (1.0F + std::exp(-1.702F * g)));
        continue;
      }
      y.push_back(p[j] / (1.0F + std::exp(-p[j])) * p[n / 2 + j]);
    }
  }
  return y;
}

class ExpertLinear : public ::testing::TestWithParam<KindCase> {
 protected:
  [[nodiscard]] TestWeight weight(int32_t num_experts, int32_t n, int32_t k) {
    return make_weight(rng_, GetParam().shape(num_experts * n, k));
  }
  [[nodiscard]] int32_t inputs(int32_t about) const {
    return std::max(1, about / GetParam().unit()) * GetParam().unit();
  }
  std::mt19937 rng_{31};
  InlineDevice one_{1};
};

TEST_P(ExpertLinear, MatchesDoubleReference) {
  constexpr int32_t kExperts = 5;
  for (const int32_t n : {16, 48, 176}) {
    const int32_t k = inputs(208);
    const TestWeight w = weight(kExperts, n, k);
    for (const int64_t rows : {1, 3, 40}) {
      Choices choices = random_choices(rng_, rows, kExperts, 2);
      const auto x = uniform_floats(rng_, rows * k, -1.0F, 1.0F);
      const auto y = ExpertCall{w, n}(one_, choices, x);
      for (size_t place = 0; place < choices.slots.size(); ++place) {
        const int32_t slot = choices.slots[place];
        const float* row = x.data() + slot / 2 * k;
        for (int32_t j = 0; j < n; ++j) {
          const float* values =
              w.values.data() + static_cast<int64_t>(choices.expert_of(slot) * n + j) * k;
          double sum = 0;
          double magnitude = 0;
          for (int32_t i = 0; i < k; ++i) {
            sum += double{values[i]} * row[i];
            magnitude += std::abs(double{values[i]} * row[i]);
          }
          ASSERT_NEAR(y[place * static_cast<size_t>(n) + static_cast<size_t>(j)],
                      sum,
                      2e-6 * magnitude + 1e-30);
        }
      }
    }
  }
}

// A row's result is that of its expert's matrix alone, whatever other rows there are and whatever they choose.
TEST_P(ExpertLinear, EachRowIsTheDenseProductOfItsExpert) {
  InlineDevice three(3);
  constexpr int32_t kExperts = 6;
  constexpr int32_t kOutputs = 96;
  const int32_t k = inputs(160);
  const TestWeight w = weight(kExperts, kOutputs, k);
  for (const ActFormat act : {ActFormat::kF32, ActFormat::kRounded}) {
    for (const bool by_row : {true, false}) {
      for (const int64_t rows : {1, 2, 9, 70}) {
        Choices choices = random_choices(rng_, rows, kExperts, 3);
        const auto x = uniform_floats(rng_, rows * (by_row ? 1 : 3) * k, -1.0F, 1.0F);
        ExpertCall call{w, kOutputs, act};
        call.by_row = by_row;
        const auto expected = dense(one_, call, choices, x);
        ASSERT_EQ(call(one_, choices, x), expected) << rows << " rows";
        ASSERT_EQ(call(three, choices, x), expected) << rows << " rows, three threads";
        call.padding = 2;
        auto padded = expected;
        padded.resize(padded.size() + size_t{2} * 3 * kOutputs, kUnwrittenOutput);
        ASSERT_EQ(call(three, choices, x), padded) << rows << " rows and two of padding";
      }
    }
  }
}

TEST_P(ExpertLinear, ExpertsWithoutRowsAndOneWithAll) {
  constexpr int32_t kExperts = 4;
  constexpr int32_t kOutputs = 32;
  const int32_t k = inputs(96);
  const TestWeight w = weight(kExperts, kOutputs, k);
  for (int32_t expert = 0; expert < kExperts; ++expert) {
    Choices choices(kExperts, 1, std::vector<int32_t>(33, expert));
    const auto x = uniform_floats(rng_, int64_t{33} * k, -1.0F, 1.0F);
    const ExpertCall call{w, kOutputs, ActFormat::kRounded};
    EXPECT_EQ(call(one_, choices, x), dense(one_, call, choices, x));
  }
  Choices none(kExperts, 2, {});
  EXPECT_TRUE((ExpertCall{w, kOutputs}(one_, none, {}).empty()));
  ExpertCall padding{w, kOutputs, ActFormat::kRounded, LinearEpilogue::kSwiGlu};
  padding.padding = 3;
  EXPECT_EQ(padding(one_, none, {}), std::vector<float>(3 * 2 * kOutputs / 2, kUnwrittenOutput));
}

TEST_P(ExpertLinear, GatesProducts) {
  constexpr int32_t kExperts = 3;
  const int32_t k = inputs(64);
  for (const int32_t n : {32, 96}) {
    const TestWeight w = weight(kExperts, n, k);
    for (const int64_t rows : {1, 21}) {
      Choices choices = random_choices(rng_, rows, kExperts, 2);
      const auto x = uniform_floats(rng_, rows * k, -1.0F, 1.0F);
      const ExpertCall call{w, n, ActFormat::kRounded, LinearEpilogue::kSwiGlu};
      const auto y = call(one_, choices, x);
      const auto expected = dense(one_, call, choices, x);
      ASSERT_EQ(y.size(), expected.size());
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(y[i], expected[i], 2e-6F * std::abs(expected[i]) + 1e-30F);
      }
    }
  }
}

TEST_P(ExpertLinear, BiasesAndClampedGates) {
  constexpr int32_t kExperts = 3;
  const int32_t k = inputs(64);
  for (const int32_t n : {32, 160}) {
    const TestWeight w = weight(kExperts, n, k);
    const auto bias = uniform_floats(rng_, int64_t{kExperts} * n, -3.0F, 3.0F);
    for (const int64_t rows : {1, 21}) {
      Choices choices = random_choices(rng_, rows, kExperts, 2);
      const auto x = uniform_floats(rng_, rows * k, -1.0F, 1.0F);
      ExpertCall call{w, n, ActFormat::kRounded};
      call.bias = &bias;
      for (const auto epilogue : {LinearEpilogue::kStore, LinearEpilogue::kSwiGlu}) {
        call.epilogue = epilogue;
        call.gate_limit = epilogue == LinearEpilogue::kSwiGlu ? 1.5F : 0.0F;
        const auto y = call(one_, choices, x);
        const auto expected = dense(one_, call, choices, x);
        ASSERT_EQ(y.size(), expected.size());
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_NEAR(y[i], expected[i], 1e-5F * (1.0F + std::abs(expected[i])));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds,
                         ExpertLinear,
                         ::testing::ValuesIn(kKindCases),
                         [](const auto& param) { return param.param.name; });

TEST(ExpertLinearIsa, SetsAgreeWithTheDenseProduct) {
  std::mt19937 rng(4);
  InlineDevice d(2);
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const char* kind : {"q8_0", "q6_k", "bf16", "f32", "mxfp4"}) {
      const TestWeight w = make_weight(rng, testing::kind_case(kind).shape(4 * 48, 256));
      Choices choices = random_choices(rng, 11, 4, 2);
      const auto x = uniform_floats(rng, 11 * 256, -1.0F, 1.0F);
      const ExpertCall call{w, 48, ActFormat::kRounded};
      EXPECT_EQ(call(d, choices, x), dense(d, call, choices, x))
          << cpu_isa_name(isa) << " " << kind;
    }
  }
}

TEST(ExpertLinearArgs, MisuseIsCaught) {
  std::mt19937 rng(1);
  InlineDevice d(1);
  const TestWeight w = make_weight(rng, testing::kind_case("bf16").shape(48, 32));
  Choices choices(2, 1, {0, 1});
  const std::vector<float> x(64);
  const ScopedCheckThrows throws;
  EXPECT_THROW((ExpertCall{w, 24}(d, choices, x)), CheckFailure) << "no whole panels";
  EXPECT_THROW((ExpertCall{w, 48}(d, choices, x)), CheckFailure) << "one expert's rows for two";
  Choices three(3, 1, {0, 2});
  EXPECT_THROW((ExpertCall{w, 16, ActFormat::kF32, LinearEpilogue::kSwiGlu}(d, three, x)),
               CheckFailure)
      << "a gate that is no whole panel";
  EXPECT_THROW((ExpertCall{w, 16, ActFormat::kF32, LinearEpilogue::kAdd}(d, three, x)),
               CheckFailure);
}

}  // namespace
}  // namespace warprow
