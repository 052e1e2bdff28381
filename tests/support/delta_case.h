// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/delta/gated_delta.h"
#include "tests/kernels/cpu_harness.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::test {

// One gated delta net, and where its rows' states lie: in scattered pages.
struct DeltaLayer {
  static constexpr int32_t kUnit = 4;
  static constexpr int64_t kPageFloats = 200;  // no multiple of a head's state

  explicit DeltaLayer(const GatedDeltaShape& of) : shape(of) {
    const auto channels = static_cast<size_t>(shape.num_channels());
    const auto heads = static_cast<size_t>(shape.num_value_heads);
    conv = testing::random_floats(channels * static_cast<size_t>(shape.conv_len), 1, 0.5F);
    dt_bias = testing::random_floats(heads, 2);
    norm = testing::random_floats(static_cast<size_t>(shape.value_dim), 3);
    for (size_t h = 0; h < heads; ++h) {
      const float rates[] = {-0.1F, -0.5F, -1.0F, -0.02F};
      rate.push_back(rates[h % 4]);
    }
    num_pages = static_cast<int32_t>((shape.state_floats() + kPageFloats - 1) / kPageFloats);
  }

  [[nodiscard]] int64_t in_size() const { return shape.num_channels() + shape.value_size(); }
  [[nodiscard]] int64_t ba_size() const { return 2 * int64_t{shape.num_value_heads}; }

  GatedDeltaShape shape;
  std::vector<float> conv;
  std::vector<float> dt_bias;
  std::vector<float> norm;
  std::vector<float> rate;
  int32_t num_pages = 0;
};

// A token's inputs by its place in the sequence; b of all heads, then a.
struct DeltaSequence {
  DeltaSequence(const DeltaLayer& layer, int64_t toks, uint32_t seed)
      : in(testing::random_floats(static_cast<size_t>(toks * layer.in_size()), seed)),
        ba(testing::random_floats(static_cast<size_t>(toks * layer.ba_size()), seed + 1)) {}
  std::vector<float> in;
  std::vector<float> ba;
};

// A part of a sequence that a step computes.
struct DeltaPart {
  const DeltaSequence* sequence;
  int32_t row;
  int64_t first;
  int64_t toks;
};

// The arrays of a step, part after part, with two rows of padding behind them.
struct DeltaStep {
  DeltaStep(const DeltaLayer& layer, const std::vector<DeltaPart>& parts, bool by_key_head) {
    for (const DeltaPart& part : parts) {
      const auto copy = [&](const std::vector<float>& from, int64_t width, std::vector<float>& to) {
        to.insert(to.end(),
                  from.begin() + part.first * width,
                  from.begin() + (part.first + part.toks) * width);
      };
      copy(part.sequence->in, layer.in_size(), in);
      copy(part.sequence->ba, layer.ba_size(), ba);
      rows.push_back(part.row);
      starts.push_back(starts.back() + static_cast<int32_t>(part.toks));
      lens.push_back(static_cast<int32_t>(part.first + part.toks));
    }
    for (int32_t i = 0; i < 2; ++i) {
      rows.push_back(-1);
      starts.push_back(starts.back());
      lens.push_back(0);
    }
    if (by_key_head) {  // b, then a of each key head
      const std::vector<float> old = ba;
      const int64_t heads = layer.shape.num_value_heads;
      const int64_t each = heads / layer.shape.num_key_heads;
      for (int64_t i = 0; i < std::ssize(ba); ++i) {
        const int64_t h = i % heads;
        const int64_t is_a = i / heads % 2;
        ba[static_cast<size_t>(i / (2 * heads) * 2 * heads + h / each * 2 * each + is_a * each +
                               h % each)] = old[static_cast<size_t>(i)];
      }
    }
  }
  [[nodiscard]] int64_t num_toks() const { return starts.back(); }
  [[nodiscard]] int64_t num_rows() const { return std::ssize(rows); }

  std::vector<float> in;
  std::vector<float> ba;
  std::vector<int32_t> rows;
  std::vector<int32_t> starts{0};
  std::vector<int32_t> lens;
};

// The cells of rows over a number of states.
class DeltaCells {
 public:
  DeltaCells(const DeltaLayer& layer, int32_t num_states)
      : num_pages_(layer.num_pages), num_blocks_(num_states * layer.num_pages) {}

  // With the null block.
  [[nodiscard]] int64_t num_floats() const { return (1 + num_blocks_) * DeltaLayer::kPageFloats; }
  // Block p of state i.
  [[nodiscard]] int32_t block(int32_t i, int32_t p) const {
    const int32_t step = num_blocks_ % 7 != 0 ? 7 : num_blocks_ % 11 != 0 ? 11 : 13;
    return 1 + (i * num_pages_ + p) * step % num_blocks_;
  }
  // Cells of a row: its own state, a checkpoint, the state to start from; -1: none.
  void set_row(int32_t row, int32_t own, int32_t kept, int32_t start) {
    const auto pages = static_cast<size_t>(num_pages_);
    const auto index = static_cast<size_t>(row);
    cells.resize(std::max(cells.size(), (index + 1) * 3 * pages));
    begins.resize(std::max(begins.size(), index + 1));
    begins[index] = row * 3 * num_pages_;
    size_t at = index * 3 * pages;
    for (const int32_t state : {own, kept, start}) {
      for (int32_t p = 0; p < num_pages_; ++p) {
        cells[at++] = state < 0 ? 0 : block(state, p);
      }
    }
  }

  std::vector<int32_t> cells;
  std::vector<int32_t> begins;

 private:
  int32_t num_pages_;
  int32_t num_blocks_;
};

// All but the places of arrays that a step has.
inline GatedDeltaArgs delta_args(const DeltaLayer& layer, bool by_key_head) {
  GatedDeltaArgs args;
  args.shape = layer.shape;
  args.ba_by_key_head = by_key_head;
  args.norm_eps = 1e-6F;
  args.pages.page_stride = DeltaLayer::kPageFloats;
  args.pages.page_floats = DeltaLayer::kPageFloats;
  args.pages.num_pages = layer.num_pages;
  args.pages.unit = DeltaLayer::kUnit;
  return args;
}

// cu_num_logits of a step: a row with num_sampled has three drafts.
inline std::vector<int32_t> delta_logits(int64_t num_rows,
                                         const std::vector<int32_t>& num_sampled) {
  std::vector<int32_t> logits{0};
  for (size_t i = 0; i < static_cast<size_t>(num_rows); ++i) {
    const bool drafts = i < num_sampled.size() && num_sampled[i] > 0;
    logits.push_back(logits.back() + (drafts ? 4 : 1));
  }
  return logits;
}

// Steps of one token and three drafts, of which the first none to three are right. The outputs of the right tokens are those of
// the sequence without drafts, also behind a step without drafts, and beside a row with a part of a prompt. step(parts,
// num_sampled) runs one; rows 0 to 3 have states of their own.
template <typename Step>
void expect_only_accepted_drafts(const DeltaLayer& layer, const Step& step) {
  constexpr int64_t kToks = 40;
  const DeltaSequence truth(layer, kToks, 5);
  const DeltaSequence wrong(layer, kToks, 9);
  const DeltaSequence prompt(layer, kToks, 7);
  const std::vector<float> expected = step({{&truth, 2, 0, kToks}}, {});
  const std::vector<float> of_prompt = step({{&prompt, 3, 0, kToks}}, {});
  const auto width = static_cast<size_t>(layer.shape.value_size());
  std::vector<float> out = step({{&truth, 0, 0, 6}}, {});
  std::vector<float> beside;
  int64_t prompt_toks = 0;
  const int32_t accepted[] = {0, 3, -1, 2, 1, -1, 3, 3, -1, 0, 2};  // -1: a step without drafts
  for (const int32_t right : accepted) {
    const auto at = static_cast<int64_t>(out.size() / width);
    DeltaSequence mixed = truth;  // wrong behind the right drafts
    const auto begin = [&](int64_t size) { return (at + 1 + std::max(right, 0)) * size; };
    std::copy(wrong.in.begin() + begin(layer.in_size()),
              wrong.in.end(),
              mixed.in.begin() + begin(layer.in_size()));
    std::copy(wrong.ba.begin() + begin(layer.ba_size()),
              wrong.ba.end(),
              mixed.ba.begin() + begin(layer.ba_size()));
    const int64_t toks = right < 0 ? 1 : 4;
    const std::vector<float> got =
        step({{&mixed, 0, at, toks}, {&prompt, 1, prompt_toks, 3}}, {right + 1, 0});
    const auto kept = static_cast<int64_t>(width) * (1 + std::max(right, 0));
    out.insert(out.end(), got.begin(), got.begin() + kept);
    beside.insert(beside.end(), got.begin() + toks * static_cast<int64_t>(width), got.end());
    prompt_toks += 3;
  }
  ASSERT_LE(out.size(), expected.size());
  EXPECT_TRUE(std::equal(out.begin(), out.end(), expected.begin()));
  EXPECT_TRUE(std::equal(beside.begin(), beside.end(), of_prompt.begin()));
}

}  // namespace warprow::test
