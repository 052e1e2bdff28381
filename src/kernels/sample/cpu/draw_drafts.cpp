// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/draw_drafts.h"

#include "device/cpu/cpu_stream.h"
#include "kernels/sample/cpu/draw.h"
#include "kernels/sample/rules/temperature.h"
#include "kernels/sample/sample.h"

#include <cmath>

namespace warprow::cpu {
namespace {

struct DrawDrafts {
  DrawDraftsArgs args;
  SampleLoops loops;

  // The token by the drafter's ids, or -1.
  [[nodiscard]] int32_t draw(int64_t i, int64_t place, const WorkerScratch& scratch) const {
    const int32_t source = args.row(i);
    const SampleParams& params = args.params(source);
    const auto width = static_cast<int32_t>(args.logits.shape[1]);
    const float* logits = args.logits.row(i);
    const RowFacts facts = loops.scan_row(logits, width, scratch.group_max);
    if (facts.has_nan || !std::isfinite(facts.max)) {
      return -1;
    }
    if (is_greedy(params.temperature)) {
      return facts.argmax;
    }
    TokenRow row = row_of(logits, width, facts, loops, scratch);
    apply_temperature(row, params.temperature, scratch);
    const Survivors left = cut_row(row, params);
    const int32_t position = args.total_len[source * args.state_stride] - 1 + args.number;
    const RandomKey key{params.seed, static_cast<uint32_t>(position), RandomPurpose::kDraft};
    const int32_t token = draw_survivor(row, left, facts.argmax, key);
    float* const probs = args.drafts.probs + place * args.drafts.width;
    const double total = masses_of(row, left.cut, facts.argmax, probs);
    for (int32_t id = 0; id < width; ++id) {
      probs[id] = static_cast<float>(static_cast<double>(probs[id]) / total);
    }
    return token;
  }

  void operator()(ComputePool& pool) const {
    pool.parallel_for(args.logits.shape[0], 1, [&](int64_t begin, int64_t end, int32_t worker) {
      const WorkerScratch scratch = worker_scratch(args.scratch.data, args.logits.shape[1], worker);
      for (int64_t i = begin; i < end; ++i) {
        if (args.row(i) < 0) {
          continue;
        }
        const int64_t place = int64_t{args.row(i)} * args.max_drafts + args.number;
        const int32_t token = draw(i, place, scratch);
        const bool same_ids = token < 0 || args.drafts.ids == nullptr;
        args.drafts.tokens[place] = same_ids ? token : args.drafts.ids[token];
      }
    });
  }
};

}  // namespace

void draw_drafts(Stream& stream, const DrawDraftsArgs& args) {
  const int64_t width = args.logits.shape[1];
  WR_CHECK_EQ(args.row.shape[0], args.logits.shape[0]);
  WR_CHECK_EQ(args.drafts.width, width);
  WR_CHECK_LT(args.number, args.max_drafts);
  WR_CHECK_GE(
      args.scratch.shape[0],
      static_cast<int64_t>(sample_scratch_bytes(width, stream.device().facts().num_threads)));
  as_cpu(stream).launch("draw_drafts", DrawDrafts{args, pick_sample_loops()});
}

}  // namespace warprow::cpu
