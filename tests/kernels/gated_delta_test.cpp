// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/gated_delta.h"

#include "kernels/activation/sigmoid_mul.h"
#include "tests/kernels/cpu_harness.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::random_floats;

constexpr int32_t kUnit = 4;
constexpr int64_t kPageFloats = 200;  // no multiple of a head's state

// One layer, the states of its rows in scattered pages, and a token's inputs by its place in the sequence.
struct Layer {
  explicit Layer(int32_t conv_len = 4, int32_t value_dim = 48) {
    shape = {2, 4, 16, value_dim, conv_len};
    const auto channels = static_cast<size_t>(shape.num_channels());
    conv = random_floats(channels * static_cast<size_t>(conv_len), 1, 0.5F);
    dt_bias = random_floats(4, 2);
    norm = random_floats(static_cast<size_t>(value_dim), 3);
    rate = {-0.1F, -0.5F, -1.0F, -0.02F};
    num_pages = static_cast<int32_t>((shape.state_floats() + kPageFloats - 1) / kPageFloats);
  }

  [[nodiscard]] int64_t in_size() const { return shape.num_channels() + shape.value_size(); }

  GatedDeltaShape shape;
  std::vector<float> conv;
  std::vector<float> dt_bias;
  std::vector<float> norm;
  std::vector<float> rate;
  int32_t num_pages = 0;
};

struct Sequence {
  Sequence(const Layer& layer, int64_t toks, uint32_t seed)
      : in(random_floats(static_cast<size_t>(toks * layer.in_size()), seed)),
        ba(random_floats(static_cast<size_t>(toks * 8), seed + 1)) {}
  std::vector<float> in;
  std::vector<float> ba;
};

// The formula in double, all tokens from zeros.
std::vector<double> expected_of(const Layer& layer, const Sequence& sequence, int64_t toks) {
  const GatedDeltaShape& s = layer.shape;
  const int64_t channels = s.num_channels();
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  std::vector<double> states(static_cast<size_t>(4 * s.head_floats()), 0.0);
  std::vector<double> out;
  for (int64_t t = 0; t < toks; ++t) {
    std::vector<double> x(static_cast<size_t>(channels), 0.0);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t j = 0; j < s.conv_len; ++j) {
        const int64_t at = t - s.conv_len + 1 + j;
        x[c] += at < 0
                    ? 0.0
                    : double{layer.conv[j * channels + c]} * sequence.in[at * layer.in_size() + c];
      }
      x[c] = silu(x[c]);
    }
    for (int64_t h = 0; h < 4; ++h) {
      const double* q = x.data() + h / 2 * 16;
      const double* k = x.data() + s.key_size() + h / 2 * 16;
      const double* v = x.data() + 2 * s.key_size() + h * s.value_dim;
      double qq = 1e-6;
      double kk = 1e-6;
      for (int64_t i = 0; i < 16; ++i) {
        qq += q[i] * q[i];
        kk += k[i] * k[i];
      }
      const double b = sequence.ba[t * 8 + h];
      const double a = sequence.ba[t * 8 + 4 + h] + layer.dt_bias[h];
      const double decay = std::exp(layer.rate[h] * std::log1p(std::exp(a)));
      const double beta = 1 / (1 + std::exp(-b));
      double* state = states.data() + h * s.head_floats();
      std::vector<double> o(static_cast<size_t>(s.value_dim), 0.0);
      for (int64_t j = 0; j < s.value_dim; ++j) {
        double known = 0;
        for (int64_t i = 0; i < 16; ++i) {
          state[i * s.value_dim + j] *= decay;
          known += state[i * s.value_dim + j] * k[i] / std::sqrt(kk);
        }
        for (int64_t i = 0; i < 16; ++i) {
          state[i * s.value_dim + j] += k[i] / std::sqrt(kk) * (v[j] - known) * beta;
          o[j] += state[i * s.value_dim + j] * q[i] / std::sqrt(qq) / 4;
        }
      }
      double squares = 0;
      for (const double value : o) {
        squares += value * value;
      }
      for (int64_t j = 0; j < s.value_dim; ++j) {
        const double z = sequence.in[t * layer.in_size() + channels + h * s.value_dim + j];
        out.push_back(o[j] / std::sqrt(squares / s.value_dim + 1e-6) * layer.norm[j] * silu(z));
      }
    }
  }
  return out;
}

// A part of a sequence that a step computes.
struct Part {
  const Sequence* sequence;
  int32_t row;
  int64_t first;
  int64_t toks;
};

class States {
 public:
  // Room for so many states, each in pages that lie apart; filled with what no step may read.
  States(const Layer& layer, int32_t num_states)
      : layer_(layer),
        memory_(static_cast<size_t>((1 + num_states * layer.num_pages) * kPageFloats), 1e30F) {}

  // Block p of state i.
  [[nodiscard]] int32_t block(int32_t i, int32_t p) const {
    const auto all = static_cast<int32_t>(memory_.size() / kPageFloats) - 1;
    return 1 + (i * layer_.num_pages + p) * 7 % all;  // 7 does not divide the counts used here
  }
  // Cells of a row: its own state, a checkpoint, the state to start from; -1: none.
  void set_row(int32_t row, int32_t own, int32_t kept, int32_t start) {
    const auto pages = static_cast<size_t>(layer_.num_pages);
    cells_.resize(std::max(cells_.size(), (static_cast<size_t>(row) + 1) * 3 * pages));
    begins_.resize(std::max(begins_.size(), static_cast<size_t>(row) + 1));
    begins_[static_cast<size_t>(row)] = row * 3 * layer_.num_pages;
    size_t at = static_cast<size_t>(row) * 3 * pages;
    for (const int32_t state : {own, kept, start}) {
      for (int32_t p = 0; p < layer_.num_pages; ++p) {
        cells_[at++] = state < 0 ? 0 : block(state, p);
      }
    }
  }

  // The outputs of a step, part after part; two rows of padding follow.
  std::vector<float> run(CpuHarness& cpu,
                         const std::vector<Part>& parts,
                         bool by_key_head = false) {
    const GatedDeltaShape& s = layer_.shape;
    std::vector<float> in;
    std::vector<float> ba;
    std::vector<int32_t> rows;
    std::vector<int32_t> starts{0};
    std::vector<int32_t> lens;
    for (const Part& part : parts) {
      const auto copy = [&](const std::vector<float>& from, int64_t width, std::vector<float>& to) {
        to.insert(to.end(),
                  from.begin() + part.first * width,
                  from.begin() + (part.first + part.toks) * width);
      };
      copy(part.sequence->in, layer_.in_size(), in);
      copy(part.sequence->ba, 8, ba);
      rows.push_back(part.row);
      starts.push_back(starts.back() + static_cast<int32_t>(part.toks));
      lens.push_back(static_cast<int32_t>(part.first + part.toks));
    }
    for (int32_t i = 0; i < 2; ++i) {
      rows.push_back(-1);
      starts.push_back(starts.back());
      lens.push_back(0);
    }
    if (by_key_head) {  // b b a a of each key head
      for (size_t t = 0; t < ba.size(); t += 8) {
        const std::vector<float> old(ba.begin() + static_cast<int64_t>(t),
                                     ba.begin() + static_cast<int64_t>(t) + 8);
        const size_t order[] = {0, 1, 4, 5, 2, 3, 6, 7};
        for (size_t i = 0; i < 8; ++i) {
          ba[t + i] = old[order[i]];
        }
      }
    }
    const int64_t toks = starts.back();
    std::vector<float> out(static_cast<size_t>(toks * s.value_size()));
    std::vector<float> gates(static_cast<size_t>(toks * 8));
    std::vector<float> scratch(static_cast<size_t>(gated_delta_scratch_floats(s, 4)));
    GatedDeltaArgs args;
    args.shape = s;
    args.qkvz = make_view(in.data(), toks, layer_.in_size());
    args.ba = make_view<const float>(ba.data(), toks, 8);
    args.ba_by_key_head = by_key_head;
    args.conv = layer_.conv.data();
    args.rate = layer_.rate.data();
    args.dt_bias = layer_.dt_bias.data();
    args.norm_weight = make_view(layer_.norm.data(), s.value_dim);
    args.norm_eps = 1e-6F;
    const auto num_rows = static_cast<int64_t>(rows.size());
    args.idx_mapping = make_view<const int32_t>(rows.data(), num_rows);
    args.query_start_loc = make_view<const int32_t>(starts.data(), num_rows + 1);
    args.seq_lens = make_view<const int32_t>(lens.data(), num_rows);
    args.pages = {memory_.data(), kPageFloats, kPageFloats, layer_.num_pages, kUnit, {}};
    args.pages.table = {cells_.data(), begins_.data(), static_cast<int32_t>(cells_.size()), 1};
    args.gates = gates.data();
    args.scratch = scratch.data();
    args.out = make_view(out.data(), toks, s.value_size());
    gated_delta(*cpu.stream, args);
    cpu.stream->synchronize();
    return out;
  }

 private:
  const Layer& layer_;
  std::vector<float> memory_;
  std::vector<int32_t> cells_;
  std::vector<int32_t> begins_;
};

TEST(GatedDelta, EqualsTheFormula) {
  for (const auto& [conv_len, value_dim] : {std::pair{4, 48}, {2, 16}, {3, 128}, {3, 20}}) {
    CpuHarness cpu(3);
    const Layer layer(conv_len, value_dim);
    const Sequence sequence(layer, 23, 11);
    States states(layer, 1);
    states.set_row(0, 0, -1, -1);
    const std::vector<float> out = states.run(cpu, {{&sequence, 0, 0, 23}});
    const std::vector<double> expected = expected_of(layer, sequence, 23);
    ASSERT_EQ(out.size(), expected.size());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], expected[i], 2e-4) << i;
    }
    EXPECT_EQ(out, states.run(cpu, {{&sequence, 0, 0, 23}}, true)) << "b and a by key head";
  }
}

// Bits do not depend on how tokens are cut into steps, nor on other rows of the step.
TEST(GatedDelta, StepsAndOtherRowsDoNotMatter) {
  CpuHarness cpu(2);
  const Layer layer;
  const Sequence first(layer, 21, 5);
  const Sequence second(layer, 9, 6);
  States whole(layer, 2);
  whole.set_row(0, 0, -1, -1);
  whole.set_row(1, 1, -1, -1);
  const std::vector<float> expected = whole.run(cpu, {{&first, 0, 0, 21}});
  for (int64_t cut = 1; cut < 21; ++cut) {
    States states(layer, 2);
    states.set_row(0, 1, -1, -1);
    states.set_row(1, 0, -1, -1);
    std::vector<float> out = states.run(cpu, {{&first, 0, 0, cut}});
    const std::vector<float> rest =
        states.run(cpu, {{&second, 1, 0, 9}, {&first, 0, cut, 21 - cut}});
    out.insert(out.end(), rest.begin() + 9 * layer.shape.value_size(), rest.end());
    ASSERT_EQ(out, expected) << cut;
  }
}

// A step keeps the state at the last multiple of the unit before its last token. Another row that starts there writes
// pages of its own, and the checkpoint stays as it was.
TEST(GatedDelta, ARowStartsFromACheckpoint) {
  CpuHarness cpu(2);
  const Layer layer;
  const Sequence sequence(layer, 21, 5);
  const Sequence other(layer, 21, 8);
  States states(layer, 4);
  states.set_row(0, 0, 1, -1);
  const std::vector<float> expected = states.run(cpu, {{&sequence, 0, 0, 21}});  // kept: behind 20
  const int64_t width = layer.shape.value_size();
  const std::vector<float> last(expected.begin() + 20 * width, expected.end());
  for (const int32_t own : {2, 3}) {
    states.set_row(1, own, -1, 1);
    EXPECT_EQ(states.run(cpu, {{&sequence, 1, 20, 1}}), last);
  }
  EXPECT_NE(states.run(cpu, {{&other, 1, 20, 1}}), last);
}

TEST(SigmoidMul, GatesEachElement) {
  CpuHarness cpu;
  const float ln3 = std::log(3.0F);
  const std::vector<float> gate{0, ln3, 9, -ln3, 0, 9};  // rows of 2 in a stride of 3
  std::vector<float> y{2, 4, 8, 16};
  sigmoid_mul(*cpu.stream, {make_strided(gate.data(), 2, 2, 3), make_view(y.data(), 2, 2)});
  cpu.stream->synchronize();
  const std::vector<float> expected{1, 3, 2, 8};
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(y[i], expected[i], 1e-6);
  }
}

}  // namespace
}  // namespace warprow
