// SPDX-License-Identifier: Apache-2.0
#include "runner/features/lora.h"

#include "base/check.h"
#include "kernels/low_rank/low_rank.h"
#include "models/bank_layout.h"
#include "models/model.h"
#include "runner/features/adapter_store.h"
#include "runner/operations.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace warprow {
namespace {

constexpr int32_t kNone = -1;

BankLayout layout_of(const RunnerParts& parts, const LoraOptions& options) {
  const std::span<const LinearSite> sites = parts.model->linear_sites();
  if (sites.empty()) {
    throw StartupError(ErrorCode::kUnsupported,
                       "--enable-lora: the model has no linear layers that take adapters");
  }
  return value_or_throw(
      make_bank_layout(sites, parts.model->facts().act_dtype, options.max_lora_rank));
}

// Owns: the banks, which rows use them, and what the step's kernels share.
class Lora final : public RunnerFeature, public LinearDelta {
 public:
  Lora(const RunnerParts& parts, const LoraOptions& options)
      : model_(*parts.model),
        hidden_size_(parts.model->facts().hidden_size),
        layout_(layout_of(parts, options)),
        store_(*parts.device,
               parts.model->linear_sites(),
               parts.model->modules_of_other_stages(),
               layout_,
               options.max_lora_rank,
               options.max_cpu_loras),
        banks_(static_cast<size_t>(options.max_loras)),
        row_banks_(static_cast<size_t>(parts.limits.max_num_seqs), kNone) {
    Arena& state = *parts.arenas.state;
    memory_ = state.alloc_bytes(static_cast<size_t>(layout_.bytes * options.max_loras));
    const int32_t max_num_seqs = parts.limits.max_num_seqs;
    device_row_banks_ = state.alloc<int32_t>(max_num_seqs);
    table_ = parts.staged_tables->add(device_row_banks_, 1, max_num_seqs, max_num_seqs);
    const int64_t toks = parts.limits.max_num_toks;
    Arena& workspace = *parts.arenas.workspace;
    runs_.token_banks = workspace.alloc<int32_t>(toks);
    runs_.order = workspace.alloc<int32_t>(toks);
    runs_.runs = workspace.alloc<BankRun>(max_bank_runs(toks, options.max_loras));
    sums_.sums =
        workspace.alloc<float>(toks * layout_.most_chunks * layout_.most_parts * layout_.max_rank);
    squares_ = workspace.alloc<float>(half_norm_squares(toks, hidden_size_));
    if (layout_.dtype != DType::kF32) {
      for (const LowRankProduct& product : layout_.products) {
        first_sums_.push_back(sums_of_tok_);
        sums_of_tok_ += int64_t{low_rank_cut(layout_.dtype, product.k).num_chunks} *
                        product.num_parts * layout_.max_rank;
      }
      product_sums_ = workspace.alloc<float>(sums_of_tok_ * kMaxTermRows);
    }
    model_.set_delta(this);
    add_operations(*parts.operations);
  }
  ~Lora() override { model_.set_delta(nullptr); }

  void on_row_added(const NewRow& row,
                    const SchedulerOutput& /*step*/,
                    StagedWrites& staged) override {
    const int32_t bank = row.adapter < 0 ? kNone : take_bank(row.adapter);
    row_banks_[static_cast<size_t>(index_of(row.row))] = bank;
    staged.stage(table_, row.row, 0, 1)[0] = bank;
  }

  void on_row_removed(RowId row) override {
    int32_t& bank = row_banks_[static_cast<size_t>(index_of(row))];
    if (bank != kNone) {
      --banks_[static_cast<size_t>(bank)].num_rows;
    }
    bank = kNone;
  }

  void vote(StepVote& vote) override {
    active_ = std::ranges::any_of(vote.rows, [this](const ScheduledRow& row) {
      return row_banks_[static_cast<size_t>(index_of(row.row))] != kNone;
    });
  }

  [[nodiscard]] uint64_t graph_key(StepPart part) const override {
    return part == StepPart::kForward && active_ ? 1 : 0;
  }

  // Copies the adapters of new rows. Earlier steps in the stream may still use what their banks had.
  void before_forward(Stream& stream, const InputBatch& /*batch*/) override {
    ++num_begun_;
    for (size_t i = 0; i < banks_.size(); ++i) {
      if (banks_[i].is_new) {
        banks_[i].is_new = false;
        stream.copy_to_device(memory_ + static_cast<int64_t>(i) * layout_.bytes,
                              store_.data_for(banks_[i].adapter, num_begun_),
                              static_cast<size_t>(layout_.bytes));
      }
    }
  }

  void before_layers(Stream& stream, const InputBatch& batch) override {
    if (!active_) {
      return;
    }
    sums_.num_toks = batch.num_toks_padded;
    product_sums_are_unset_ = false;
    GroupByBankArgs args;
    args.idx_mapping = batch.device.idx_mapping;
    args.query_start_loc = batch.device.query_start_loc;
    args.row_banks = device_row_banks_;
    args.num_rows = std::max(batch.num_rows, batch.num_rows_padded);
    args.num_toks = batch.num_toks_padded;
    args.num_banks = static_cast<int32_t>(banks_.size());
    args.runs = runs_;
    group_by_bank(stream, args);
  }

  void on_output(ModelRunnerOutput& /*output*/) override { ++num_taken_; }

  [[nodiscard]] bool active() const override { return active_; }

  [[nodiscard]] const LowRankProduct& product(int32_t site) const override {
    return layout_.products[static_cast<size_t>(site)];
  }

  void read(Stream& stream,
            int32_t site,
            const ConstActView& x,
            const HalfNorm& norm,
            float norm_eps,
            bool in_product) override {
    const bool normed = !norm.weight.empty();
    WR_DCHECK(x.shape[0] == sums_.num_toks);
    WR_DCHECK(!normed || x.shape[1] == hidden_size_);
    HalfNorm half = norm;
    if (!half.begun) {
      half.squares = squares_;
    }
    sums_.squares = half.squares;
    term_ = {product(site), banks(), runs_, sums_, normed, norm_eps, in_product};
    if (in_product) {
      unset_product_sums(stream);
      term_.sums.sums = product_sums_ + first_sums_[static_cast<size_t>(site)] * sums_.num_toks;
    } else {
      low_rank_shrink(stream, {x, half, product(site), banks(), runs_, sums_});
    }
  }

  [[nodiscard]] const LowRankTerm& term() const override { return term_; }

  void add(Stream& stream, const ActView& y) override {
    low_rank_expand(stream, {term_, y, {}, 0});
  }

  void add_gated(Stream& stream,
                 int64_t first_tok,
                 const ActView& y,
                 const ActView& activated) override {
    low_rank_expand(stream, {term_, y, activated, first_tok});
  }

 private:
  struct Bank {
    int32_t adapter = kNone;
    int32_t num_rows = 0;   // live ones that use it
    uint64_t last_use = 0;  // when a row took it
    bool is_new = false;    // the adapter is not copied yet
  };

  // Once a step, before its first product that computes its sums itself.
  void unset_product_sums(Stream& stream) {
    if (!product_sums_are_unset_) {
      const auto count = static_cast<size_t>(sums_of_tok_ * sums_.num_toks);
      stream.fill(product_sums_, kUnsetSumByte, count * sizeof(float));
      product_sums_are_unset_ = true;
    }
  }

  [[nodiscard]] Banks banks() const {
    return {memory_,
            layout_.bytes,
            static_cast<int32_t>(banks_.size()),
            layout_.max_rank,
            layout_.dtype};
  }

  // The adapter's bank, or else the free one that was used longest ago.
  int32_t take_bank(int32_t adapter) {
    auto found = std::ranges::find(banks_, adapter, &Bank::adapter);
    if (found == banks_.end()) {
      for (auto bank = banks_.begin(); bank != banks_.end(); ++bank) {
        if (bank->num_rows == 0 &&
            (found == banks_.end() || std::pair(bank->adapter != kNone, bank->last_use) <
                                          std::pair(found->adapter != kNone, found->last_use))) {
          found = bank;
        }
      }
      WR_CHECK(found != banks_.end(), "rows have more than {} adapters", banks_.size());
      found->adapter = adapter;
      found->is_new = true;
    }
    ++found->num_rows;
    found->last_use = ++num_uses_;
    return static_cast<int32_t>(found - banks_.begin());
  }

  void add_operations(Operations& operations) {
    operations.add("load_lora", [this](const std::string& argument) {
      const size_t space = argument.find(' ');
      return store_.load(std::stoi(argument), argument.substr(space + 1), num_taken_);
    });
    operations.add("unload_lora", [this](const std::string& argument) {
      const int32_t id = std::stoi(argument);
      store_.remove(id);
      if (const auto bank = std::ranges::find(banks_, id, &Bank::adapter); bank != banks_.end()) {
        bank->adapter = kNone;
      }
      return std::string();
    });
  }

  Model& model_;
  int64_t hidden_size_;  // inputs of every layer with a norm in front
  BankLayout layout_;
  AdapterStore store_;
  std::vector<Bank> banks_;              // [max_loras]
  std::vector<int32_t> row_banks_;       // [max_num_seqs]
  std::byte* memory_ = nullptr;          // dev [max_loras, layout_.bytes]
  int32_t* device_row_banks_ = nullptr;  // dev i32 [max_num_seqs]
  int32_t table_ = -1;                   // of staged writes
  BankRuns runs_;                        // of the step
  LowRankSums sums_;                     // of the product under way
  float* squares_ = nullptr;             // of its rows, if no other operation begins their norm
  // Sums of products that compute them themselves: each site has its own, for up to kMaxTermRows tokens.
  float* product_sums_ = nullptr;
  std::vector<int64_t> first_sums_;  // by site: floats in front, for each token
  int64_t sums_of_tok_ = 0;
  bool product_sums_are_unset_ = false;
  bool active_ = false;  // in this step
  LowRankTerm term_;     // of it
  uint64_t num_uses_ = 0;
  uint64_t num_begun_ = 0;  // steps
  uint64_t num_taken_ = 0;  // whose output was taken
};

}  // namespace

std::unique_ptr<RunnerFeature> make_lora(const RunnerParts& parts, const LoraOptions& options) {
  return std::make_unique<Lora>(parts, options);
}

}  // namespace warprow
