// SPDX-License-Identifier: Apache-2.0
// The cost of sampling on CUDA by rule: microseconds per step, and the time that a rule adds to greedy.
#include "base/philox.h"
#include "device/cuda/launch.h"
#include "kernels/sample/sample.h"
#include "tests/support/sample_case.h"

#include <cstdio>
#include <vector>

#include "bench/kernels/cuda_timing.h"

namespace warprow::cuda {
namespace {

constexpr int64_t kVocab = 151936;
constexpr int64_t kMaxRows = 256;
constexpr int64_t kMaxTop = 20;
constexpr int32_t kPrompt = 128;
constexpr int64_t kLen = 1024;  // prompt and output

// Normally distributed numbers with standard deviation `scale`.
__global__ void fill_normal(float* x, int64_t n, float scale) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < n) {
    const PhiloxBlock bits = philox4x32_10({{static_cast<uint32_t>(at), 0, 0, 0}}, 1, 2);
    const double r = sqrt(-2.0 * log(uniform_open(bits.word[0])));
    x[at] = static_cast<float>(scale * r * cospi(2.0 * uniform_open(bits.word[1])));
  }
}

struct Rule {
  const char* name;
  uint32_t rules;
  SampleParams params;
};

std::vector<Rule> rules_to_time() {
  std::vector<Rule> all;
  const auto add = [&all](const char* name, uint32_t rules, const auto& set) {
    Rule rule{name, rules, {}};
    set(rule.params);
    all.push_back(rule);
  };
  constexpr uint32_t kCut = kSampleRandom | kSampleCut;
  add("greedy", 0, [](SampleParams&) {});
  add("temperature", kSampleRandom, [](SampleParams& p) { p.temperature = 0.8F; });
  add("min_p 0.05", kCut, [](SampleParams& p) {
    p.temperature = 0.8F;
    p.min_p = 0.05F;
  });
  add("top_k 50", kCut, [](SampleParams& p) {
    p.temperature = 0.8F;
    p.top_k = 50;
  });
  add("top_p 0.9 + top_k 50", kCut, [](SampleParams& p) {
    p.temperature = 0.8F;
    p.top_k = 50;
    p.top_p = 0.9F;
  });
  add("top_k 1000", kCut, [](SampleParams& p) {
    p.temperature = 0.8F;
    p.top_k = 1000;
  });
  add("top_p 0.9", kCut, [](SampleParams& p) {
    p.temperature = 0.8F;
    p.top_p = 0.9F;
  });
  add("logprobs 5", kSampleLogprobs, [](SampleParams& p) { p.num_logprobs = 5; });
  add("penalties", kSamplePenalties, [](SampleParams& p) {
    p.repetition_penalty = 1.1F;
    p.presence_penalty = 0.5F;
  });
  add("penalties, temperature", kSamplePenalties | kSampleRandom, [](SampleParams& p) {
    p.temperature = 0.8F;
    p.repetition_penalty = 1.1F;
    p.presence_penalty = 0.5F;
  });
  add("all of them", kAllSampleRules, [](SampleParams& p) {
    p.temperature = 0.8F;
    p.top_k = 50;
    p.top_p = 0.9F;
    p.num_logprobs = 5;
    p.repetition_penalty = 1.1F;
    p.presence_penalty = 0.5F;
  });
  return all;
}

class SampleBench {
 public:
  explicit SampleBench(float scale)
      : logits_(kCopies * kMaxRows * kVocab * sizeof(float)),
        scratch_(sample_scratch_bytes(kVocab, kMaxRows)) {
    const int64_t n = kCopies * kMaxRows * kVocab;
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>((n + 255) / 256));
    shape.block = dim3(256);
    shape.overlap_previous = false;
    launch(*bench_.stream, "fill_normal", shape, fill_normal, logits_.as<float>(), n, scale);
    bench_.stream->synchronize();
  }

  void run(const Rule& rule, const char* what) {
    std::printf("%-22s %-10s", rule.name, what);
    for (const int64_t n : {1, 32, 128, 256}) {
      const double us = time(rule, n);
      double& greedy = greedy_us_[n];
      if (rule.rules == 0) {
        greedy = us;
        const double bytes = static_cast<double>(n * kVocab * 4);
        std::printf("  %4lld: %6.1f (%5.1f %%)",
                    static_cast<long long>(n),
                    us,
                    100.0 * bytes / kReadBytesPerSecond * 1e6 / us);
      } else {
        std::printf("  %4lld: %6.1f (%+6.1f)", static_cast<long long>(n), us, us - greedy);
      }
    }
    std::printf("\n");
  }

 private:
  static constexpr int64_t kCopies = 3;

  // Rows without logits: these are on the device already.
  static std::vector<testing::SampleRow> rows_of(const SampleParams& params, int64_t n) {
    std::vector<testing::SampleRow> rows(static_cast<size_t>(n));
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].params = params;
      rows[i].params.seed = i * 1234567;
      rows[i].prompt_len = rows[i].prefill_len = kPrompt;
      rows[i].tokens.resize(static_cast<size_t>(kLen));
      for (size_t t = 0; t < rows[i].tokens.size(); ++t) {
        const size_t at = i * rows[i].tokens.size() + t;
        rows[i].tokens[t] = static_cast<int32_t>(at * 7919 % static_cast<size_t>(kVocab));
      }
    }
    return rows;
  }

  double time(const Rule& rule, int64_t n) {
    BenchBuffers inputs;
    SampleArgs a =
        testing::SampleCase(rows_of(rule.params, n)).args(inputs, LogprobsMode::kRawLogprobs);
    BenchBuffer out(static_cast<size_t>(n * (4 + 2 * kMaxTop) * 4));
    auto* const words = out.as<int32_t>();
    a.sampled = make_view(words, n);
    a.rank = make_view(words + n, n);
    a.error = make_view(words + 2 * n, n);
    a.logprob = make_view(out.as<float>() + 3 * n, n);
    a.top_ids = make_view(words + 4 * n, n, kMaxTop);
    a.top_logprobs = make_view(out.as<float>() + (4 + kMaxTop) * n, n, kMaxTop);
    a.scratch = make_view(scratch_.as<std::byte>(), static_cast<int64_t>(scratch_.bytes()));
    a.rules = rule.rules;
    const int64_t copies = kCopies * kMaxRows / n;
    return graph_us(*bench_.stream, 24, [&](int call) {
      const int64_t first = call % copies * n;
      a.logits = make_view<const float>(logits_.as<float>() + first * kVocab, n, kVocab);
      warprow::sample(*bench_.stream, a);
    });
  }

  BenchDevice bench_;
  BenchBuffer logits_;
  BenchBuffer scratch_;
  double greedy_us_[kMaxRows + 1] = {};
};

}  // namespace
}  // namespace warprow::cuda

int main() {
  using namespace warprow::cuda;
  std::printf(
      "sampling, vocabulary %lld: rows: us a step (greedy: part of the read limit; else\n"
      "what the rule adds to greedy)\n",
      static_cast<long long>(kVocab));
  for (const float scale : {3.0F, 0.6F}) {
    SampleBench bench(scale);
    for (const Rule& rule : rules_to_time()) {
      bench.run(rule, scale > 1.0F ? "peaked" : "flat");
    }
  }
}
