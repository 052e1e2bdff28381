// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta/gated_delta.h"

#include "kernels/activation/sigmoid_mul.h"
#include "tests/kernels/cpu_harness.h"
#include "tests/support/delta_case.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::delta_args;
using test::DeltaCells;
using test::DeltaLayer;
using test::DeltaPart;
using test::DeltaSequence;
using test::DeltaStep;
using testing::CpuHarness;

DeltaLayer layer_of(int32_t conv_len = 4, int32_t value_dim = 48) {
  return DeltaLayer({2, 4, 16, value_dim, conv_len});
}

// The formula in double, all tokens from zeros.
std::vector<double> expected_of(const DeltaLayer& layer,
                                const DeltaSequence& sequence,
                                int64_t toks) {
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

class States : public DeltaCells {
 public:
  // Room for so many states, filled with what no step may read.
  States(const DeltaLayer& layer, int32_t num_states)
      : DeltaCells(layer, num_states),
        layer_(layer),
        memory_(static_cast<size_t>(num_floats()), 1e30F) {}

  // The outputs of a step, part after part. num_sampled, by part: the last three tokens of a part with one are drafts, of which
  // one less than it are accepted; 0: it has no drafts. Empty: no part has any.
  std::vector<float> run(CpuHarness& cpu,
                         const std::vector<DeltaPart>& parts,
                         bool by_key_head = false,
                         std::vector<int32_t> num_sampled = {}) {
    const GatedDeltaShape& s = layer_.shape;
    DeltaStep step(layer_, parts, by_key_head);
    const int64_t toks = step.num_toks();
    std::vector<float> out(static_cast<size_t>(toks * s.value_size()));
    std::vector<float> gates(static_cast<size_t>(toks * layer_.ba_size()));
    std::vector<float> scratch(static_cast<size_t>(gated_delta_scratch_floats(s, 4)));
    GatedDeltaArgs args = delta_args(layer_, by_key_head);
    args.qkvz = make_view(step.in.data(), toks, layer_.in_size());
    args.ba = make_view<const float>(step.ba.data(), toks, layer_.ba_size());
    args.conv = layer_.conv.data();
    args.rate = layer_.rate.data();
    args.dt_bias = layer_.dt_bias.data();
    args.norm_weight = make_view(layer_.norm.data(), s.value_dim);
    args.idx_mapping = make_view<const int32_t>(step.rows.data(), step.num_rows());
    args.query_start_loc = make_view<const int32_t>(step.starts.data(), step.num_rows() + 1);
    args.seq_lens = make_view<const int32_t>(step.lens.data(), step.num_rows());
    args.pages.data = memory_.data();
    args.pages.table = {cells.data(), begins.data(), static_cast<int32_t>(cells.size()), 1};
    args.gates = gates.data();
    args.scratch = scratch.data();
    args.out = make_view(out.data(), toks, s.value_size());
    const std::vector<int32_t> cu_logits = test::delta_logits(step.num_rows(), num_sampled);
    std::vector<float> drafts_in = step.in;  // before they are overwritten
    if (!num_sampled.empty()) {
      args.cu_num_logits = make_view<const int32_t>(cu_logits.data(), step.num_rows() + 1);
    }
    gated_delta(*cpu.stream, args);
    if (!num_sampled.empty()) {
      std::vector<float> unused(out.size());
      num_sampled.resize(static_cast<size_t>(step.num_rows()));
      args.qkvz = make_strided(drafts_in.data(), toks, s.num_channels(), layer_.in_size());
      args.num_sampled = make_view<const int32_t>(num_sampled.data(), step.num_rows());
      args.out = make_view(unused.data(), toks, s.value_size());
      gated_delta(*cpu.stream, args);
    }
    cpu.stream->synchronize();
    return out;
  }

 private:
  const DeltaLayer& layer_;
  std::vector<float> memory_;
};

TEST(GatedDelta, EqualsTheFormula) {
  for (const auto& [conv_len, value_dim] : {std::pair{4, 48}, {2, 16}, {3, 128}, {3, 20}}) {
    CpuHarness cpu(3);
    const DeltaLayer layer = layer_of(conv_len, value_dim);
    const DeltaSequence sequence(layer, 23, 11);
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
  const DeltaLayer layer = layer_of();
  const DeltaSequence first(layer, 21, 5);
  const DeltaSequence second(layer, 9, 6);
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
  const DeltaLayer layer = layer_of();
  const DeltaSequence sequence(layer, 21, 5);
  const DeltaSequence other(layer, 21, 8);
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

TEST(GatedDelta, OnlyAcceptedDraftsEnterTheState) {
  CpuHarness cpu(2);
  const DeltaLayer layer = layer_of();
  States states(layer, 4);
  for (int32_t row = 0; row < 4; ++row) {
    states.set_row(row, row, -1, -1);
  }
  test::expect_only_accepted_drafts(
      layer, [&](const std::vector<DeltaPart>& parts, const std::vector<int32_t>& num_sampled) {
        return states.run(cpu, parts, false, num_sampled);
      });
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
