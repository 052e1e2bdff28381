// SPDX-License-Identifier: Apache-2.0
// Gated delta nets on CUDA: near their twin on the CPU, and the same bits however tokens are cut into steps.
#include "tests/cuda/cuda_test.h"
#include "tests/support/delta_case.h"

#include <algorithm>
#include <cmath>
#include <memory>
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
using testing::CudaTest;

constexpr GatedDeltaShape kShapes[] = {{2, 4, 16, 48, 4},
                                       {1, 2, 32, 16, 2},
                                       {16, 32, 128, 128, 4},
                                       {1, 3, 64, 20, 3},
                                       {2, 2, 128, 96, 4}};

class GatedDeltaCuda : public CudaTest {
 protected:
  // The states of rows on a device, filled with what no step may read.
  struct States : DeltaCells {
    States(const DeltaLayer& of, int32_t num_states, float* data)
        : DeltaCells(of, num_states), layer(of), memory(data) {}
    const DeltaLayer& layer;
    float* memory;
  };
  States states_of(const DeltaLayer& layer, int32_t num_states) {
    const DeltaCells sizes(layer, num_states);
    return {layer, num_states, poisoned<float>(static_cast<size_t>(sizes.num_floats()))};
  }

  // The outputs of a step on the GPU, part after part. Two tokens of padding follow, with NaN as inputs. num_sampled, by part:
  // the last three tokens of a part with one are drafts, of which one less than it are accepted; 0: it has no drafts.
  std::vector<float> run(const States& states,
                         const std::vector<DeltaPart>& parts,
                         DType dtype,
                         bool by_key_head = false,
                         std::vector<int32_t> num_sampled = {}) {
    const DeltaLayer& layer = states.layer;
    const DeltaStep step(layer, parts, by_key_head);
    const int64_t toks = step.num_toks();
    const int64_t padded = toks + 2;
    const int64_t width = layer.in_size() + layer.ba_size();
    std::vector<float> all(static_cast<size_t>(padded * width), NAN);
    for (int64_t t = 0; t < toks; ++t) {
      const auto at = all.begin() + t * width;
      std::copy_n(step.in.begin() + t * layer.in_size(), layer.in_size(), at);
      std::copy_n(step.ba.begin() + t * layer.ba_size(), layer.ba_size(), at + layer.in_size());
    }
    const ActView in = dtype == DType::kBF16 ? upload_act(all, padded, width)
                                             : ActView(DType::kF32, upload(all), padded, width);
    GatedDeltaArgs args = delta_args(layer, by_key_head);
    args.qkvz = in.columns(0, layer.in_size());
    args.ba = in.columns(layer.in_size(), layer.ba_size());
    args.conv = upload(layer.conv);
    args.rate = upload(layer.rate);
    args.dt_bias = upload(layer.dt_bias);
    args.norm_weight = make_view<const float>(upload(layer.norm), layer.shape.value_dim);
    args.idx_mapping = make_view<const int32_t>(upload(step.rows), step.num_rows());
    args.query_start_loc = make_view<const int32_t>(upload(step.starts), step.num_rows() + 1);
    args.seq_lens = make_view<const int32_t>(upload(step.lens), step.num_rows());
    args.num_decode_rows = static_cast<int32_t>(
        std::ranges::find_if(parts, [](const DeltaPart& part) { return part.toks > 1; }) -
        parts.begin());
    args.pages.data = states.memory;
    args.pages.table = {
        upload(states.cells), upload(states.begins), static_cast<int32_t>(states.cells.size()), 1};
    args.out = poisoned_act(dtype, padded, layer.shape.value_size());
    if (!num_sampled.empty()) {
      args.cu_num_logits = make_view<const int32_t>(
          upload(test::delta_logits(step.num_rows(), num_sampled)), step.num_rows() + 1);
    }
    gated_delta(stream(), args);
    std::vector<float> out = download_act(args.out);
    if (!num_sampled.empty()) {
      num_sampled.resize(static_cast<size_t>(step.num_rows()));
      args.qkvz = in.columns(0, layer.shape.num_channels());
      args.num_sampled = make_view<const int32_t>(upload(num_sampled), step.num_rows());
      gated_delta(stream(), args);
    }
    out.resize(static_cast<size_t>(toks * layer.shape.value_size()));
    return out;
  }

  // All tokens from zeros on the CPU, of inputs rounded to bf16 if the GPU's are.
  std::vector<float> on_cpu(const DeltaLayer& layer,
                            const DeltaSequence& sequence,
                            int64_t toks,
                            DType dtype) {
    const GatedDeltaShape& s = layer.shape;
    DeltaCells cells(layer, 1);
    cells.set_row(0, 0, -1, -1);
    std::vector<float> memory(static_cast<size_t>(cells.num_floats()), NAN);
    DeltaStep step(layer, {{&sequence, 0, 0, toks}}, false);
    if (dtype == DType::kBF16) {
      step.in = rounded(step.in);
      step.ba = rounded(step.ba);
    }
    std::vector<float> out(static_cast<size_t>(toks * s.value_size()));
    std::vector<float> gates(static_cast<size_t>(toks * layer.ba_size()));
    std::vector<float> scratch(static_cast<size_t>(gated_delta_scratch_floats(s, 2)));
    GatedDeltaArgs args = delta_args(layer, false);
    args.qkvz = make_view(step.in.data(), toks, layer.in_size());
    args.ba = make_view<const float>(step.ba.data(), toks, layer.ba_size());
    args.conv = layer.conv.data();
    args.rate = layer.rate.data();
    args.dt_bias = layer.dt_bias.data();
    args.norm_weight = make_view(layer.norm.data(), s.value_dim);
    args.idx_mapping = make_view<const int32_t>(step.rows.data(), step.num_rows());
    args.query_start_loc = make_view<const int32_t>(step.starts.data(), step.num_rows() + 1);
    args.seq_lens = make_view<const int32_t>(step.lens.data(), step.num_rows());
    args.pages.data = memory.data();
    args.pages.table = {cells.cells.data(), cells.begins.data(), 3 * layer.num_pages, 1};
    args.gates = gates.data();
    args.scratch = scratch.data();
    args.out = make_view(out.data(), toks, s.value_size());
    gated_delta(cpu_stream(), args);
    cpu_stream().synchronize();
    return out;
  }

  static void expect_near(const std::vector<float>& got,
                          const std::vector<float>& expected,
                          DType dtype) {
    ASSERT_EQ(got.size(), expected.size());
    const float relative = dtype == DType::kBF16 ? 1.0F / 128 : 1e-3F;
    const float absolute = dtype == DType::kBF16 ? 1e-3F : 1e-4F;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], absolute + relative * std::abs(expected[i])) << i;
    }
  }
};

TEST_F(GatedDeltaCuda, EqualsTheCpu) {
  for (const GatedDeltaShape& shape : kShapes) {
    const DeltaLayer layer(shape);
    const DeltaSequence sequence(layer, 39, 11);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(::testing::Message() << shape.key_dim << " keys, " << shape.value_dim
                                        << " values, " << dtype_name(dtype));
      const std::vector<float> expected = on_cpu(layer, sequence, 39, dtype);
      for (const bool by_key_head : {false, true}) {
        arena().reset();
        States states = states_of(layer, 1);
        states.set_row(0, 0, -1, -1);
        expect_near(run(states, {{&sequence, 0, 0, 39}}, dtype, by_key_head), expected, dtype);
      }
    }
  }
}

TEST_F(GatedDeltaCuda, StepsAndOtherRowsDoNotMatter) {
  for (const GatedDeltaShape& shape : kShapes) {
    const DeltaLayer layer(shape);
    const DeltaSequence first(layer, 37, 5);
    const DeltaSequence second(layer, 37, 6);
    const int64_t width = shape.value_size();
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      arena().reset();
      States whole = states_of(layer, 1);
      whole.set_row(0, 0, -1, -1);
      const std::vector<float> expected = run(whole, {{&first, 0, 0, 37}}, dtype);
      for (const int64_t cut : {1, 2, 15, 16, 17, 31, 32, 33, 36}) {
        arena().reset();
        States states = states_of(layer, 3);
        states.set_row(0, 1, -1, -1);
        states.set_row(1, 0, -1, -1);
        states.set_row(2, 2, -1, -1);
        std::vector<float> out =
            run(states, {{&second, 1, 0, 20}, {&first, 0, 0, cut}, {&second, 2, 0, 7}}, dtype);
        out.erase(out.begin(), out.begin() + 20 * width);
        out.resize(static_cast<size_t>(cut * width));
        const std::vector<float> rest =
            run(states, {{&second, 1, 20, 1}, {&first, 0, cut, 37 - cut}}, dtype);
        out.insert(out.end(), rest.begin() + width, rest.end());
        ASSERT_EQ(out, expected) << cut;
      }
    }
  }
}

TEST_F(GatedDeltaCuda, TokenByToken) {
  const DeltaLayer layer(kShapes[2]);
  const DeltaSequence sequence(layer, 20, 5);
  States states = states_of(layer, 2);
  states.set_row(0, 0, -1, -1);
  states.set_row(3, 1, -1, -1);
  const std::vector<float> expected = run(states, {{&sequence, 0, 0, 20}}, DType::kBF16);
  std::vector<float> out;
  for (int64_t t = 0; t < 20; ++t) {
    const std::vector<float> one = run(states, {{&sequence, 3, t, 1}}, DType::kBF16);
    out.insert(out.end(), one.begin(), one.end());
  }
  EXPECT_EQ(out, expected);
}

// A step keeps the state at the last multiple of the unit before its last token. A row that starts there writes pages of
// its own, and the checkpoint stays as it was.
TEST_F(GatedDeltaCuda, ARowStartsFromACheckpoint) {
  for (const GatedDeltaShape& shape : kShapes) {
    const DeltaLayer layer(shape);
    const DeltaSequence sequence(layer, 41, 5);
    const DeltaSequence other(layer, 41, 8);
    const int64_t width = shape.value_size();
    for (const int64_t toks : {21, 24, 41}) {
      arena().reset();
      States states = states_of(layer, 4);
      states.set_row(0, 0, 1, -1);
      const std::vector<float> expected = run(states, {{&sequence, 0, 0, toks}}, DType::kF32);
      const int64_t kept = (toks - 1) / DeltaLayer::kUnit * DeltaLayer::kUnit;
      const std::vector<float> last(expected.begin() + kept * width, expected.end());
      for (const int32_t own : {2, 3}) {
        states.set_row(1, own, -1, 1);
        EXPECT_EQ(run(states, {{&sequence, 1, kept, toks - kept}}, DType::kF32), last) << toks;
      }
      EXPECT_NE(run(states, {{&other, 1, kept, toks - kept}}, DType::kF32), last);
    }
  }
}

// Rows beside each other, and the right tokens' outputs those of the sequence without drafts.
TEST_F(GatedDeltaCuda, OnlyAcceptedDraftsEnterTheState) {
  for (const GatedDeltaShape& shape : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const DeltaLayer layer(shape);
      arena().reset();
      States states = states_of(layer, 4);
      for (int32_t row = 0; row < 4; ++row) {
        states.set_row(row, row, -1, -1);
      }
      const auto step = [&](const std::vector<DeltaPart>& parts,
                            const std::vector<int32_t>& num_sampled) {
        return run(states, parts, dtype, false, num_sampled);
      };
      test::expect_only_accepted_drafts(layer, step);
    }
  }
}

}  // namespace
}  // namespace warprow
