// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/expert_linear.h"

#include "base/check.h"
#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/activation/act_and_mul_loops.h"
#include "kernels/linear/cpu/panel_layout.h"
#include "kernels/linear/cpu/rounded_rows.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace warprow {
namespace {

constexpr int32_t kMaxExperts = 1024;

void check_args(const ExpertLinearArgs& args) {
  const ExpertLists& lists = args.lists;
  const bool gated = args.epilogue == LinearEpilogue::kSwiGlu;
  WR_CHECK(gated || args.epilogue == LinearEpilogue::kStore, "products of experts are not added");
  WR_CHECK(args.n % (gated ? 32 : 16) == 0, "{} outputs of an expert", args.n);
  WR_CHECK(lists.num_experts <= kMaxExperts, "{} experts", lists.num_experts);
  WR_CHECK_EQ(int64_t{args.w.n}, int64_t{lists.num_experts} * args.n);
  WR_CHECK_EQ(args.w.k, args.x.shape[1]);
  WR_CHECK_EQ(args.y.shape[0], args.x.shape[0] * (args.x_by_row ? lists.num_chosen : 1));
  WR_CHECK_EQ(args.y.shape[1], gated ? args.n / 2 : args.n);
  if (gated) {
    WR_CHECK_EQ(args.product.shape[0], args.y.shape[0]);
    WR_CHECK_EQ(args.product.shape[1], args.n);
  }
  cpu::RowForms forms;
  forms.add(args.w, args.act);
  WR_CHECK(!(forms.any() || args.x_by_row) || args.scratch != nullptr);
}

// Runs one operation on the pool.
class ExpertRun {
 public:
  ExpertRun(const ExpertLinearArgs& args, cpu::ComputePool& pool)
      : args_(args),
        lists_(args.lists),
        pool_(pool),
        kernels_(cpu::panel_kernels()),
        x_(args.x.f32()),
        out_((args.epilogue == LinearEpilogue::kStore ? args.y : args.product).f32()),
        rows_(args.scratch, args.y.shape[0], args.w.k) {
    forms_.add(args.w, args.act);
    for (int32_t e = 0; e < lists_.num_experts; ++e) {
      if (num_rows(e) > 0) {
        active_[num_active_++] = e;
      }
    }
  }

  void run() {
    const int64_t num_places = lists_.first.data[lists_.num_experts];
    if (num_places == 0) {
      return;
    }
    FloatRows x{x_.data, x_.stride[0]};
    if (args_.x_by_row) {
      spread_rows(num_places / lists_.num_chosen);
      x = {rows_.floats(), args_.w.k};
    } else if (forms_.any()) {
      pool_.parallel_for(num_places, kGrain, [this](int64_t begin, int64_t end, int32_t) {
        for (int64_t place = begin; place < end; ++place) {
          rows_.round(kernels_, forms_, x_.row(place), place);
        }
      });
    }
    multiply(x, num_places);
    if (args_.epilogue == LinearEpilogue::kSwiGlu) {
      gate(num_places);
    }
  }

 private:
  using FloatRows = cpu::FloatRows;
  static constexpr int64_t kPairPanels = 2;
  static constexpr int64_t kMaxGrain = 64;
  static constexpr int64_t kGrain = 4;  // rows

  [[nodiscard]] int64_t num_rows(int32_t expert) const {
    return lists_.first.data[expert + 1] - lists_.first.data[expert];
  }

  // Rounds each row once and copies it to the places of its other slots. Without a form to round to it copies floats.
  void spread_rows(int64_t num_toks) const {
    const int32_t num_chosen = lists_.num_chosen;
    const auto k = static_cast<size_t>(args_.w.k);
    pool_.parallel_for(num_toks, kGrain, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t t = begin; t < end; ++t) {
        const int32_t* places = lists_.places.data + t * num_chosen;
        if (forms_.any()) {
          rows_.round(kernels_, forms_, x_.row(t), places[0]);
          for (int32_t j = 1; j < num_chosen; ++j) {
            rows_.copy(forms_, places[0], places[j]);
          }
          continue;
        }
        for (int32_t j = 0; j < num_chosen; ++j) {
          std::memcpy(
              rows_.floats() + static_cast<size_t>(places[j]) * k, x_.row(t), k * sizeof(float));
        }
      }
    });
  }

  // One pass: pairs of panels of all active experts. A few pieces for few rows, as linear has them: then the weights
  // stream from memory.
  void multiply(const FloatRows& x, int64_t num_places) const {
    const int64_t num_panels = args_.n / cpu::kPanelRows;
    const int64_t num_pairs = ceil_div(num_panels, kPairPanels);
    const int64_t items = num_active_ * num_pairs;
    const int64_t pieces = (num_places <= 16 * num_active_ ? 3 : 16) * int64_t{pool_.num_workers()};
    const int64_t grain = std::clamp<int64_t>(ceil_div(items, pieces), 1, kMaxGrain);
    pool_.parallel_for(items, grain, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      while (begin < end) {
        const int64_t pair = begin % num_pairs;
        const int64_t count = std::min(end - begin, num_pairs - pair);
        run_panels(active_[begin / num_pairs],
                   pair * kPairPanels,
                   std::min(num_panels, (pair + count) * kPairPanels),
                   x);
        begin += count;
      }
    });
  }

  // Panels [first, last) of the expert's matrix.
  void run_panels(int32_t expert, int64_t first, int64_t last, const FloatRows& x) const {
    const int64_t row = lists_.first.data[expert];
    const int64_t panel = int64_t{expert} * (args_.n / cpu::kPanelRows);
    cpu::PanelJob job = cpu::panel_job(args_.w, panel + first, panel + last);
    job.y = out_.row(row) + first * cpu::kPanelRows;
    job.y_stride = out_.stride[0];
    if (args_.bias != nullptr) {
      job.out_bias = args_.bias + int64_t{expert} * args_.n + first * cpu::kPanelRows;
    }
    job.num_rows = num_rows(expert);
    rows_.multiply(kernels_, job, args_.w, args_.act, row, {x.x + row * x.stride, x.stride});
  }

  void gate(int64_t num_places) const {
    const auto gated =
        args_.gelu ? WR_ISA_PICK(cpu::gelu_and_mul_row) : WR_ISA_PICK(cpu::silu_and_mul_row);
    const auto clamped_swiglu = WR_ISA_PICK(cpu::clamped_swiglu_row);
    const View<float, 2> y = args_.y.f32();
    const int32_t width = args_.n / 2;
    pool_.parallel_for(num_places, kGrain, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t place = begin; place < end; ++place) {
        const float* product = out_.row(place);
        if (args_.gate_limit > 0.0F) {
          clamped_swiglu(product, product + width, width, args_.gate_limit, y.row(place));
        } else {
          gated(product, product + width, width, y.row(place));
        }
      }
    });
  }

  const ExpertLinearArgs& args_;
  const ExpertLists& lists_;
  cpu::ComputePool& pool_;
  const cpu::PanelKernels& kernels_;
  View<const float, 2> x_;
  View<float, 2> out_;
  cpu::RoundedRows rows_;
  cpu::RowForms forms_;
  int32_t num_active_ = 0;
  int32_t active_[kMaxExperts] = {};  // experts that have rows, ascending
};

}  // namespace

void cpu::expert_linear(Stream& stream, const ExpertLinearArgs& args) {
  check_args(args);
  as_cpu(stream).launch("expert_linear",
                        [args](ComputePool& pool) { ExpertRun(args, pool).run(); });
}

}  // namespace warprow
