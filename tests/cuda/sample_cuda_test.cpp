// SPDX-License-Identifier: Apache-2.0
// The CUDA sampler against the CPU's: equal tokens, ranks and errors for every row, and logprobs equal up to rounding.
#include "kernels/sample/sample.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/sample_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;
using testing::SampleCase;
using testing::SampleOutcome;
using testing::SampleRow;
using Ints = std::vector<int32_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kMaxTop = 20;
constexpr int64_t kMaxLen = 300;

// A row with `tokens`: first the prompt, then outputs. The prefill holds a third of the outputs, as after a preemption.
SampleRow row_of(std::vector<float> x, const SampleParams& p, Ints tokens, int32_t prompt) {
  SampleRow row;
  row.logits = std::move(x);
  row.params = p;
  row.prompt_len = prompt;
  row.prefill_len = prompt + (static_cast<int32_t>(tokens.size()) - prompt) / 3;
  row.tokens = std::move(tokens);
  return row;
}
SampleRow row_of(std::vector<float> x, const SampleParams& p) {
  return row_of(std::move(x), p, {0, 0, 0}, 2);
}

class SampleCuda : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    rng_.seed(11);
  }

  template <typename Make>
  static void set_outputs(SampleArgs& a, const Make& make) {
    const int64_t n = a.logits.shape[0];
    a.sampled = make_view(make(int32_t{}, n), n);
    a.logprob = make_view(make(float{}, n), n);
    a.rank = make_view(make(int32_t{}, n), n);
    a.error = make_view(make(int32_t{}, n), n);
    a.top_ids = make_view(make(int32_t{}, n * kMaxTop), n, kMaxTop);
    a.top_logprobs = make_view(make(float{}, n * kMaxTop), n, kMaxTop);
  }

  std::vector<SampleOutcome> on_cpu(const SampleCase& c) {
    testing::HostMemory host;
    SampleArgs a = c.args(host, LogprobsMode::kRawLogprobs);
    a.rules = kAllSampleRules;
    std::vector<std::vector<uint32_t>> outputs;
    set_outputs(a, [&](auto zero, int64_t n) {
      outputs.emplace_back(static_cast<size_t>(n), 0xffffffffU);
      return reinterpret_cast<decltype(zero)*>(outputs.back().data());
    });
    std::vector<std::byte> scratch(sample_scratch_bytes(DeviceKind::kCpu, c.vocab(), c.size(), 2),
                                   std::byte{0xff});
    a.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
    sample(cpu_stream(), a);
    return testing::outcomes(a, [](const auto* p, int64_t n) { return std::vector(p, p + n); });
  }

  std::vector<SampleOutcome> on_gpu(const SampleCase& c, uint32_t rules) {
    arena().reset();
    ArenaMemory device = memory();
    SampleArgs a = c.args(device, LogprobsMode::kRawLogprobs);
    a.rules = rules;
    set_outputs(a, [this](auto zero, int64_t n) {
      return poisoned<decltype(zero)>(static_cast<size_t>(n));
    });
    const size_t bytes = sample_scratch_bytes(DeviceKind::kCuda, c.vocab(), c.size(), 1);
    a.scratch = make_view(poisoned<std::byte>(bytes), static_cast<int64_t>(bytes));
    sample(stream(), a);
    const auto after = download(a.logits.data, c.logits().size());
    EXPECT_EQ(std::memcmp(after.data(), c.logits().data(), after.size() * sizeof(float)), 0)
        << "the sampler must not change raw logits";
    return testing::outcomes(
        a, [this](const auto* p, int64_t n) { return download(p, static_cast<size_t>(n)); });
  }

  // The same from the largest of each 64 logits, as a model's head leaves them.
  std::vector<SampleOutcome> of_maxima(const SampleCase& c) {
    arena().reset();
    ArenaMemory device = memory();
    SampleArgs a = c.args(device, LogprobsMode::kRawLogprobs);
    a.rules = 0;
    set_outputs(a, [this](auto zero, int64_t n) {
      return poisoned<decltype(zero)>(static_cast<size_t>(n));
    });
    const int64_t per_row = c.vocab() / kMaxOutputs;
    std::vector<OutputMax> maxima;
    for (int64_t i = 0; i < c.size() * per_row; ++i) {
      OutputMax m{-kInf, static_cast<int32_t>(i % per_row) * kMaxOutputs};
      const float* const x = c.logits().data() + i * kMaxOutputs;
      for (int32_t at = 0; at < kMaxOutputs; ++at) {
        if (x[at] > m.value) {
          m.output = static_cast<int32_t>(i % per_row) * kMaxOutputs + at;
        }
        m.value = std::isnan(x[at]) || std::isnan(m.value) ? kNan : std::max(m.value, x[at]);
      }
      maxima.push_back(m);
    }
    auto* data = poisoned<OutputMax>(maxima.size());
    stream().copy_to_device(data, maxima.data(), maxima.size() * sizeof(OutputMax));
    stream().synchronize();
    a.maxima = make_view<const OutputMax>(data, c.size(), per_row);
    a.logits = {};
    sample(stream(), a);
    SampleArgs sizes = a;
    sizes.logits.shape[0] = c.size();
    return testing::outcomes(
        sizes, [this](const auto* p, int64_t n) { return download(p, static_cast<size_t>(n)); });
  }

  static std::string about(const std::vector<SampleRow>& rows, size_t i) {
    if (!rows[i].active) {
      return "a padding row";
    }
    const SampleParams& p = rows[i].params;
    return fmt::format(
        "row {} of vocab {}: temperature {} top_k {} top_p {} min_p {} logprobs {} penalties {} {} "
        "{} min_tokens {}",
        i,
        rows[i].logits.size(),
        p.temperature,
        p.top_k,
        p.top_p,
        p.min_p,
        p.num_logprobs,
        p.repetition_penalty,
        p.frequency_penalty,
        p.presence_penalty,
        p.min_tokens);
  }

  // pad: elements between rows of logits.
  void check(const std::vector<SampleRow>& rows, int64_t pad = 0) {
    const SampleCase c(rows, pad);
    const std::vector<SampleOutcome> want = on_cpu(c);
    for (const uint32_t rules : {testing::rules_of(rows), kAllSampleRules}) {
      const std::vector<SampleOutcome> got = on_gpu(c, rules);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        SCOPED_TRACE(about(rows, i));
        testing::expect_same(want[i], got[i]);
        if (HasFailure()) {
          return;  // the first differing row is enough output
        }
      }
    }
  }

  std::vector<float> gaussian(int64_t n, float scale) {
    std::vector<float> x(static_cast<size_t>(n));
    std::normal_distribution<float> normal(0.0F, scale);
    std::generate(x.begin(), x.end(), [&] { return normal(rng_); });
    return x;
  }
  template <typename T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[rng_() % from.size()];
  }
  int32_t below(int64_t n) { return static_cast<int32_t>(rng_() % static_cast<uint64_t>(n)); }

  // A random row of one of several kinds of distribution.
  std::vector<float> row_of_kind(int64_t vocab) {
    std::vector<float> x = gaussian(vocab, pick({0.05F, 0.6F, 3.0F, 9.0F}));
    switch (below(9)) {
      case 0:  // many ties
        for (float& v : x) {
          v = std::round(v * 2.0F) / 2.0F;
        }
        break;
      case 1:  // a few logits are far above the rest
        for (int i = 0; i < 30; ++i) {
          x[static_cast<size_t>(below(vocab))] += 20.0F;
        }
        break;
      case 2:  // the largest logits have adjacent ids
        for (int64_t i = 0; i < std::min<int64_t>(vocab, 3000); ++i) {
          x[static_cast<size_t>(i)] += 12.0F;
        }
        break;
      case 3:  // most are masked
        for (float& v : x) {
          v = below(50) != 0 ? -kInf : v;
        }
        x[static_cast<size_t>(below(vocab))] = 1.0F;
        break;
      default:
        break;
    }
    return x;
  }

  SampleParams params_of_kind() {
    SampleParams p;
    p.seed = rng_();
    p.temperature = pick({0.0F, 1e-6F, 0.004F, 0.7F, 1.0F, 1.0F, 2.0F});
    if (below(2) == 0) {
      p.top_k = pick({1, 2, 20, 50, 256, 257, 1000, 5000, 200000});
    }
    if (below(2) == 0) {
      p.top_p = pick({1e-6F, 0.3F, 0.5F, 0.9F, 0.95F, 0.999F, 0.99999F});
    }
    if (below(3) == 0) {
      p.min_p = pick({1e-9F, 0.001F, 0.05F, 0.3F, 1.0F});
    }
    if (below(2) == 0) {
      p.num_logprobs = pick({0, 1, 5, 20});
    }
    if (below(3) == 0) {
      p.repetition_penalty = pick({1.0F, 1.2F, 0.8F});
      p.frequency_penalty = pick({0.0F, 0.3F, -0.5F});
      p.presence_penalty = pick({0.0F, 0.4F});
      p.min_tokens = pick({0, 3, 1000});
    }
    return p;
  }

  // Random tokens. Some repeat, and some have the row's largest logit.
  Ints tokens_for(const std::vector<float>& x) {
    const auto vocab = static_cast<int64_t>(x.size());
    Ints tokens(static_cast<size_t>(3 + below(kMaxLen - 3)));
    for (int32_t& t : tokens) {
      t = below(3) == 0 ? below(std::min<int64_t>(vocab, 40)) : below(vocab);
    }
    for (size_t i = 1; i < tokens.size(); i += 4) {
      tokens[i] = static_cast<int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
    }
    return tokens;
  }

  std::vector<SampleRow> mixed(int64_t vocab, int64_t n) {
    std::vector<SampleRow> rows;
    for (int64_t i = 0; i < n; ++i) {
      std::vector<float> x = row_of_kind(vocab);
      Ints tokens = tokens_for(x);
      const SampleParams p = params_of_kind();
      const int32_t prompt = below(static_cast<int64_t>(tokens.size()));
      rows.push_back(row_of(std::move(x), p, std::move(tokens), prompt));
      rows.back().stop_ids = {rows.back().tokens[1]};
      for (int other = 0; other < 4; ++other) {
        rows.back().stop_ids.push_back(below(vocab + 10) - 5);
      }
    }
    return rows;
  }

  std::mt19937_64 rng_;
};

// Greedy rows among which are ties, padding, a NaN and nothing finite.
TEST_F(SampleCuda, MaximaYieldTheTokensOfLogits) {
  for (const int64_t vocab : {64, 640, 12'800, 151'936}) {
    std::vector<SampleRow> rows;
    for (int i = 0; i < 12; ++i) {
      SampleParams greedy;
      greedy.temperature = 0.0F;
      rows.push_back(row_of(row_of_kind(vocab), greedy));
    }
    rows[2].logits[static_cast<size_t>(below(vocab))] = kNan;
    rows[3].active = false;
    std::ranges::fill(rows[4].logits, -kInf);
    std::ranges::fill(rows[5].logits, -0.0F);
    rows[5].logits.back() = 0.0F;
    rows[6].logits[static_cast<size_t>(vocab - 1)] = kInf;
    const SampleCase c(rows, 0);
    const std::vector<SampleOutcome> want = on_gpu(c, 0);
    const std::vector<SampleOutcome> got = of_maxima(c);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE(about(rows, i));
      testing::expect_same(want[i], got[i]);
    }
  }
}

TEST_F(SampleCuda, MixedRowsAreTheCpus) {
  for (const int64_t vocab : {1, 3, 33, 1000, 8192, 8193, 32000}) {
    for (const int64_t pad : {0, 5, 64}) {
      check(mixed(vocab, vocab > 10000 ? 100 : 60), pad);
      ASSERT_FALSE(HasFailure()) << "vocab " << vocab << " pad " << pad;
    }
  }
}

TEST_F(SampleCuda, LargeVocabulary) { check(mixed(151936, 48)); }

TEST_F(SampleCuda, ManyRows) { check(mixed(5000, 300)); }

TEST_F(SampleCuda, GreedyAndPlainRandomRows) {
  for (const int64_t vocab : {1000, 32000, 151936}) {
    std::vector<SampleRow> rows;
    for (int i = 0; i < 24; ++i) {
      SampleParams p;
      p.seed = rng_();
      p.temperature = i % 3 == 0 ? 0.0F : pick({0.3F, 1.0F, 1.7F});
      rows.push_back(row_of(gaussian(vocab, pick({0.01F, 1.0F, 6.0F})), p));
    }
    check(rows);
    check({row_of(gaussian(vocab, 2.0F), SampleParams{})});
  }
}

// Rows of plain random sampling, with and without rows that use min_p.
TEST_F(SampleCuda, PlainRandomRowsBesideCutOnes) {
  for (const int64_t vocab : {5, 8192, 151936}) {
    for (const float min_p : {0.0F, 0.02F}) {
      std::vector<SampleRow> rows;
      for (int i = 0; i < 30; ++i) {
        const auto x = row_of_kind(vocab);
        SampleParams p;
        p.seed = rng_();
        p.temperature = pick({0.02F, 0.8F, 2.0F});
        p.min_p = i % 4 == 0 ? min_p : 0.0F;
        p.repetition_penalty = pick({1.0F, 1.0F, 1.3F});
        p.presence_penalty = p.repetition_penalty > 1.0F ? 0.5F : 0.0F;
        const Ints tokens = tokens_for(x);
        rows.push_back(row_of(x, p, tokens, below(static_cast<int64_t>(tokens.size()))));
      }
      check(rows);
    }
  }
}

// Top logprobs of rows in which a mask leaves fewer tokens than requested.
TEST_F(SampleCuda, LogprobsOfMaskedRows) {
  for (const int64_t vocab : {40, 9000, 151936}) {
    std::vector<SampleRow> rows;
    for (const int32_t left : {1, 2, 19, 20, 21, 36}) {
      for (const bool in_front : {false, true}) {
        std::vector<float> x(static_cast<size_t>(vocab), -kInf);
        for (int32_t i = 0; i < left; ++i) {
          x[static_cast<size_t>(in_front ? i : below(vocab))] = static_cast<float>(i % 5);
        }
        SampleParams p;
        p.seed = rng_();
        p.temperature = pick({0.0F, 1.0F});
        p.num_logprobs = pick({1, 5, 20});
        rows.push_back(row_of(std::move(x), p));
      }
    }
    check(rows);
  }
}

TEST_F(SampleCuda, RowsWithoutATokenGetNone) {
  std::vector<SampleRow> rows = mixed(3000, 20);
  for (size_t i = 0; i < rows.size(); i += 3) {
    rows[i].active = false;
  }
  check(rows);
}

// Degenerate rows (NaN, infinities, ties) under every rule.
TEST_F(SampleCuda, AdversarialRows) {
  for (const int64_t vocab : {1000, 151936}) {
    std::vector<std::vector<float>> logits(9,
                                           std::vector<float>(static_cast<size_t>(vocab), 0.25F));
    std::fill(logits[1].begin(), logits[1].end(), -kInf);
    logits[1][static_cast<size_t>(vocab - 2)] = -3.0F;
    logits[2][17] = std::nanf("");
    logits[3][18] = kInf;
    std::fill(logits[4].begin(), logits[4].end(), -kInf);
    for (size_t i = 0; i < logits[5].size(); ++i) {  // ties at every k
      logits[5][i] = static_cast<float>(i % 3);
      logits[6][i] = i % 2 == 0 ? 0.0F : -0.0F;
      logits[7][i] = static_cast<float>(i) * 1e-3F;
      logits[8][i] = i % 1000 == 0 ? 1e30F : -1e30F * static_cast<float>(i % 7 + 1);
    }
    std::vector<SampleRow> rows;
    for (const auto& x : logits) {
      for (const int32_t top_k : {0, 1, 40, 700, 70000}) {
        for (const float top_p : {1.0F, 1e-7F, 0.5F, 0.97F}) {
          SampleParams p;
          p.seed = rng_();
          p.temperature = pick({0.5F, 1.0F});
          p.top_k = top_k;
          p.top_p = top_p;
          p.min_p = pick({0.0F, 0.0F, 0.1F});
          p.num_logprobs = pick({-1, 3, 20});
          if (vocab < 10000 || below(3) == 0) {
            rows.push_back(row_of(x, p));
          }
        }
      }
      SampleParams greedy;
      greedy.num_logprobs = 20;
      rows.push_back(row_of(x, greedy));
    }
    check(rows);
  }
}

TEST_F(SampleCuda, ARowWhereEveryTokenIsAStopIdFails) {
  SampleParams p;
  p.min_tokens = 100;
  p.num_logprobs = 3;
  SampleRow row = row_of(gaussian(6, 1.0F), p);
  row.stop_ids = {0, 1, 2, 3, 4, 5};
  check({row});
}

// Repeated runs give the same bytes.
TEST_F(SampleCuda, RepeatsItself) {
  const SampleCase c(mixed(32000, 64));
  const std::vector<SampleOutcome> first = on_gpu(c, kAllSampleRules);
  EXPECT_TRUE(first == on_gpu(c, kAllSampleRules));
}

}  // namespace
}  // namespace warprow
