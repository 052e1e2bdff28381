// SPDX-License-Identifier: Apache-2.0
// The sampler on CUDA against its CPU twin: the same token, rank and error for every row, and
// logprobs up to rounding.
#include "kernels/sample/sample.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/sample_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;
using Ints = std::vector<int32_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kMaxTop = 20;
constexpr int64_t kMaxLen = 300;
constexpr int32_t kPageShift = 9;  // a row has one page
constexpr int64_t kStopIds = 8;    // a count, then ids

// What a call of the sampler gets, on the host.
struct Batch {
  int64_t vocab;
  int64_t stride;
  std::vector<float> logits{};
  std::vector<SampleParams> params{};
  Ints row{}, position{};
  Ints pages{}, prefill{}, later{}, prompt_len{}, prefill_len{}, stop_ids{};

  explicit Batch(int64_t v, int64_t pad = 0) : vocab(v), stride(v + pad) {}
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(row.size()); }

  // A row with `tokens`, the first of them prompt, some of the rest known at a preemption.
  void add(const std::vector<float>& x, const SampleParams& p, const Ints& tokens, int32_t prompt) {
    logits.insert(logits.end(), x.begin(), x.end());
    logits.resize(static_cast<size_t>(stride) * (row.size() + 1), 1e30F);
    row.push_back(static_cast<int32_t>(params.size()));
    pages.push_back(static_cast<int32_t>(params.size()));
    params.push_back(p);
    const auto len = static_cast<int32_t>(tokens.size());
    position.push_back(len - 1);
    prompt_len.push_back(prompt);
    prefill_len.push_back(prompt + (len - prompt) / 3);
    Ints known(tokens);
    known.resize(size_t{1} << kPageShift, -9);
    Ints outputs(known);
    std::fill(known.begin() + prefill_len.back(), known.end(), -9);
    std::fill(outputs.begin(), outputs.begin() + prefill_len.back(), -9);
    prefill.insert(prefill.end(), known.begin(), known.end());
    later.insert(later.end(), outputs.begin(), outputs.end());
  }
  void add(const std::vector<float>& x, const SampleParams& p) { add(x, p, {0, 0, 0}, 2); }

  // The rules that some row needs.
  [[nodiscard]] uint32_t rules() const {
    uint32_t needed = 0;
    for (const SampleParams& p : params) {
      needed |= test::rules_of(p);
    }
    return needed;
  }
};

struct Result {
  Ints sampled, rank, error, top_ids;
  std::vector<float> logprob, top_logprobs;
};

class SampleCuda : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    rng_.seed(11);
  }

  // place(vector) gives the vector's elements where the sampler can read them.
  template <typename Place>
  static SampleArgs inputs(const Batch& b, uint32_t rules, const Place& place) {
    const int64_t n = b.size();
    SampleArgs a;
    a.logits = make_strided<const float>(place(b.logits), n, b.vocab, b.stride);
    a.logit_row = make_view<const int32_t>(place(b.row), n);
    a.logit_pos = make_view<const int32_t>(place(b.position), n);
    a.params = make_view<const SampleParams>(place(b.params), n);
    auto* const later = const_cast<int32_t*>(place(b.later));  // the sampler only reads
    a.tokens = {{place(b.pages), place(b.prefill), later, 1, kPageShift},
                place(b.prompt_len),
                place(b.prefill_len),
                1};
    a.stop_ids = b.stop_ids.empty() ? nullptr : place(b.stop_ids);
    a.stop_ids_stride = kStopIds;
    a.rules = rules;
    return a;
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

  template <typename Read>
  static Result results(const SampleArgs& a, const Read& read) {
    const int64_t n = a.logits.shape[0];
    return {read(a.sampled.data, n),
            read(a.rank.data, n),
            read(a.error.data, n),
            read(a.top_ids.data, n * kMaxTop),
            read(a.logprob.data, n),
            read(a.top_logprobs.data, n * kMaxTop)};
  }

  Result on_cpu(const Batch& b) {
    SampleArgs a = inputs(b, kAllSampleRules, [](const auto& v) { return v.data(); });
    std::vector<std::vector<uint32_t>> memory;
    set_outputs(a, [&](auto zero, int64_t n) {
      memory.emplace_back(static_cast<size_t>(n), 0xffffffffU);
      return reinterpret_cast<decltype(zero)*>(memory.back().data());
    });
    std::vector<std::byte> scratch(sample_scratch_bytes(DeviceKind::kCpu, b.vocab, b.size(), 2),
                                   std::byte{0xff});
    a.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
    sample(cpu_stream(), a);
    return results(a, [](const auto* p, int64_t n) { return std::vector(p, p + n); });
  }

  Result on_gpu(const Batch& b, uint32_t rules) {
    arena().reset();
    SampleArgs a = inputs(b, rules, [this](const auto& v) { return upload(v); });
    set_outputs(a, [this](auto zero, int64_t n) {
      return poisoned<decltype(zero)>(static_cast<size_t>(n));
    });
    const size_t bytes = sample_scratch_bytes(DeviceKind::kCuda, b.vocab, b.size(), 1);
    a.scratch = make_view(poisoned<std::byte>(bytes), static_cast<int64_t>(bytes));
    sample(stream(), a);
    Result r = results(a, [this](const auto* p, int64_t n) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(p)>>;
      return download(const_cast<T*>(p), static_cast<size_t>(n));
    });
    const auto after = download(const_cast<float*>(a.logits.data), b.logits.size());
    EXPECT_EQ(std::memcmp(after.data(), b.logits.data(), after.size() * sizeof(float)), 0)
        << "raw logits stay untouched";
    return r;
  }

  static bool close(float want, float got) {
    return want == got || std::abs(want - got) <= 1e-5F + 2e-6F * std::abs(want);
  }

  static std::string about(const Batch& b, int64_t i) {
    if (b.row[static_cast<size_t>(i)] < 0) {
      return "a padding row";
    }
    const SampleParams& p = b.params[static_cast<size_t>(b.row[static_cast<size_t>(i)])];
    return fmt::format(
        "row {} of vocab {}: temperature {} top_k {} top_p {} min_p {} logprobs {} penalties {} {} "
        "{} min_tokens {}",
        i,
        b.vocab,
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

  static void compare(const Batch& b, const Result& want, const Result& got) {
    for (int64_t i = 0; i < b.size(); ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_EQ(want.sampled[at], got.sampled[at]) << about(b, i);
      EXPECT_EQ(want.error[at], got.error[at]) << about(b, i);
      if (want.sampled[at] == got.sampled[at]) {
        EXPECT_EQ(want.rank[at], got.rank[at]) << about(b, i);
        EXPECT_TRUE(close(want.logprob[at], got.logprob[at]))
            << want.logprob[at] << " and " << got.logprob[at] << " in " << about(b, i);
      }
      for (size_t c = at * kMaxTop; c < (at + 1) * kMaxTop; ++c) {
        EXPECT_EQ(want.top_ids[c], got.top_ids[c]) << "column " << c % kMaxTop << about(b, i);
        EXPECT_TRUE(close(want.top_logprobs[c], got.top_logprobs[c])) << about(b, i);
        if (want.top_ids[c] < 0) {
          break;  // columns behind the first unused one are left alone
        }
      }
      if (HasFailure()) {
        return;  // one row's story is enough
      }
    }
  }

  void check(const Batch& b) {
    const Result want = on_cpu(b);
    compare(b, want, on_gpu(b, b.rules()));
    if (!HasFailure()) {
      compare(b, want, on_gpu(b, kAllSampleRules));
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

  // A row of some kind that models have, or must not.
  std::vector<float> row_of_kind(int64_t vocab) {
    std::vector<float> x = gaussian(vocab, pick({0.05F, 0.6F, 3.0F, 9.0F}));
    switch (below(9)) {
      case 0:  // many ties
        for (float& v : x) {
          v = std::round(v * 2.0F) / 2.0F;
        }
        break;
      case 1:  // a few stand out
        for (int i = 0; i < 30; ++i) {
          x[static_cast<size_t>(below(vocab))] += 20.0F;
        }
        break;
      case 2:  // the large ones side by side
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

  // Tokens of which some repeat and some are the row's likeliest.
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

  Batch mixed(int64_t vocab, int64_t n, int64_t pad) {
    Batch b(vocab, pad);
    for (int64_t i = 0; i < n; ++i) {
      const auto x = row_of_kind(vocab);
      const Ints tokens = tokens_for(x);
      b.add(x, params_of_kind(), tokens, below(static_cast<int64_t>(tokens.size())));
      for (int64_t s = 0; s < kStopIds; ++s) {
        b.stop_ids.push_back(s == 0 ? 5 : s == 1 ? tokens[1] : below(vocab + 10) - 5);
      }
    }
    return b;
  }

  std::mt19937_64 rng_;
};

TEST_F(SampleCuda, MixedRowsAreTheCpus) {
  for (const int64_t vocab : {1, 3, 33, 1000, 8192, 8193, 32000}) {
    for (const int64_t pad : {0, 5, 64}) {
      check(mixed(vocab, vocab > 10000 ? 100 : 60, pad));
      ASSERT_FALSE(HasFailure()) << "vocab " << vocab << " pad " << pad;
    }
  }
}

TEST_F(SampleCuda, LargeVocabulary) { check(mixed(151936, 48, 0)); }

TEST_F(SampleCuda, ManyRows) { check(mixed(5000, 300, 0)); }

TEST_F(SampleCuda, GreedyAndPlainRandomRows) {
  for (const int64_t vocab : {1000, 32000, 151936}) {
    Batch b(vocab);
    for (int i = 0; i < 24; ++i) {
      SampleParams p;
      p.seed = rng_();
      p.temperature = i % 3 == 0 ? 0.0F : pick({0.3F, 1.0F, 1.7F});
      b.add(gaussian(vocab, pick({0.01F, 1.0F, 6.0F})), p);
    }
    check(b);
    Batch one(vocab);
    one.add(gaussian(vocab, 2.0F), SampleParams{});
    check(one);
  }
}

// Steps of random rows alone, with and without one whose tokens are cut.
TEST_F(SampleCuda, PlainRandomRowsBesideCutOnes) {
  for (const int64_t vocab : {5, 8192, 151936}) {
    for (const float min_p : {0.0F, 0.02F}) {
      Batch b(vocab);
      for (int i = 0; i < 30; ++i) {
        const auto x = row_of_kind(vocab);
        SampleParams p;
        p.seed = rng_();
        p.temperature = pick({0.02F, 0.8F, 2.0F});
        p.min_p = i % 4 == 0 ? min_p : 0.0F;
        p.repetition_penalty = pick({1.0F, 1.0F, 1.3F});
        p.presence_penalty = p.repetition_penalty > 1.0F ? 0.5F : 0.0F;
        const Ints tokens = tokens_for(x);
        b.add(x, p, tokens, below(static_cast<int64_t>(tokens.size())));
      }
      check(b);
    }
  }
}

// The likeliest tokens of a row in which a mask leaves fewer than are asked for.
TEST_F(SampleCuda, LogprobsOfMaskedRows) {
  for (const int64_t vocab : {40, 9000, 151936}) {
    Batch b(vocab);
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
        b.add(x, p);
      }
    }
    check(b);
  }
}

TEST_F(SampleCuda, RowsWithoutATokenGetNone) {
  Batch b = mixed(3000, 20, 0);
  for (size_t i = 0; i < 20; i += 3) {
    b.row[i] = -1;
    b.position[i] = -1;
  }
  check(b);
}

// Rows that no model should give, under every rule.
TEST_F(SampleCuda, AdversarialRows) {
  for (const int64_t vocab : {1000, 151936}) {
    std::vector<std::vector<float>> rows(9, std::vector<float>(static_cast<size_t>(vocab), 0.25F));
    std::fill(rows[1].begin(), rows[1].end(), -kInf);
    rows[1][static_cast<size_t>(vocab - 2)] = -3.0F;
    rows[2][17] = std::nanf("");
    rows[3][18] = kInf;
    std::fill(rows[4].begin(), rows[4].end(), -kInf);
    for (size_t i = 0; i < rows[5].size(); ++i) {  // ties at every k
      rows[5][i] = static_cast<float>(i % 3);
      rows[6][i] = i % 2 == 0 ? 0.0F : -0.0F;
      rows[7][i] = static_cast<float>(i) * 1e-3F;
      rows[8][i] = i % 1000 == 0 ? 1e30F : -1e30F * static_cast<float>(i % 7 + 1);
    }
    Batch b(vocab);
    for (const auto& x : rows) {
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
            b.add(x, p);
          }
        }
      }
      SampleParams greedy;
      greedy.num_logprobs = 20;
      b.add(x, greedy);
    }
    check(b);
  }
}

TEST_F(SampleCuda, ARowWhereEveryTokenIsAStopIdFails) {
  Batch b(6);
  SampleParams p;
  p.min_tokens = 100;
  p.num_logprobs = 3;
  b.add(gaussian(6, 1.0F), p);
  b.stop_ids = {6, 0, 1, 2, 3, 4, 5, 0};
  check(b);
}

// The same bytes in every run.
TEST_F(SampleCuda, RepeatsItself) {
  const Batch b = mixed(32000, 64, 0);
  const Result first = on_gpu(b, kAllSampleRules);
  const Result again = on_gpu(b, kAllSampleRules);
  EXPECT_EQ(first.sampled, again.sampled);
  EXPECT_EQ(std::memcmp(first.logprob.data(), again.logprob.data(), 64 * sizeof(float)), 0);
  EXPECT_EQ(first.top_ids, again.top_ids);
}

}  // namespace
}  // namespace warprow
