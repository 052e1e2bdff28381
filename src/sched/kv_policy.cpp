// SPDX-License-Identifier: Apache-2.0
#include "sched/kv_policy.h"

#include "base/check.h"
#include "kv/kv_math.h"

#include <limits>

namespace warprow {
namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

// Every query sees everything before it.
class FullPolicy final : public KvPolicy {
 public:
  explicit FullPolicy(int32_t block_size) : block_size_(block_size) {}

  [[nodiscard]] int32_t max_blocks() const override { return kNever; }

  // The unbroken run of cached blocks from the start.
  [[nodiscard]] int32_t longest_hit(const CachedBlocks& cached, int32_t limit) const override {
    const int32_t max_blocks = limit / block_size_;
    int32_t blocks = 0;
    while (blocks < max_blocks && cached.find(blocks) != kNullBlock) {
      ++blocks;
    }
    return blocks * block_size_;
  }
  [[nodiscard]] bool hits_may_be_cut() const override { return true; }
  [[nodiscard]] int32_t num_seen_blocks(int32_t num_hit_blocks) const override {
    return num_hit_blocks;
  }

  [[nodiscard]] int32_t num_passed_blocks(int32_t /*num_computed*/) const override { return 0; }
  [[nodiscard]] int32_t passed_at(int32_t /*block_idx*/) const override { return kNever; }

 private:
  int32_t block_size_;
};

// A query sees the last `window` tokens, itself included.
class WindowPolicy final : public KvPolicy {
 public:
  WindowPolicy(int32_t window, int32_t block_size, const KvPolicyLimits& limits)
      : window_(window),
        block_size_(block_size),
        max_blocks_(
            max_window_blocks(window, limits.max_step_tokens, limits.max_model_len, block_size)) {}

  [[nodiscard]] int32_t max_blocks() const override { return max_blocks_; }

  // The last block boundary at which everything that the next query's window sees is cached.
  [[nodiscard]] int32_t longest_hit(const CachedBlocks& cached, int32_t limit) const override {
    const int32_t needed = window_hit_blocks(window_, block_size_);
    int32_t run = 0;
    for (int32_t i = limit / block_size_ - 1; i >= 0 && run < needed; --i) {
      run = cached.find(i) != kNullBlock ? run + 1 : 0;
      if (run == needed) {
        return (i + needed) * block_size_;
      }
    }
    // A shorter run counts only if it reaches back to token 0.
    return needed == 0 ? limit : run * block_size_;
  }
  [[nodiscard]] bool hits_may_be_cut() const override { return false; }
  [[nodiscard]] int32_t num_seen_blocks(int32_t /*num_hit_blocks*/) const override {
    return window_hit_blocks(window_, block_size_);
  }

  [[nodiscard]] int32_t num_passed_blocks(int32_t num_computed) const override {
    return first_token_in_window(num_computed, window_) / block_size_;
  }
  [[nodiscard]] int32_t passed_at(int32_t block_idx) const override {
    return (block_idx + 1) * block_size_ + window_ - 1;
  }

 private:
  int32_t window_;
  int32_t block_size_;
  int32_t max_blocks_;
};

// A query sees the state behind the tokens before it, whose pages a cached checkpoint has. A request keeps one state.
class StatePolicy final : public KvPolicy {
 public:
  explicit StatePolicy(const KvGroupSpec& group)
      : unit_(group.block_size),
        num_pages_(group.state_pages),
        max_blocks_(max_state_blocks(group)) {}

  [[nodiscard]] int32_t max_blocks() const override { return max_blocks_; }

  // The last checkpoint that is cached whole.
  [[nodiscard]] int32_t longest_hit(const CachedBlocks& cached, int32_t limit) const override {
    for (int32_t i = limit / unit_ - 1; i >= 0; --i) {
      int32_t pages = 0;
      while (pages < num_pages_ && cached.find_page(i, pages) != kNullBlock) {
        ++pages;
      }
      if (pages == num_pages_) {
        return (i + 1) * unit_;
      }
    }
    return 0;
  }
  [[nodiscard]] bool hits_may_be_cut() const override { return false; }
  [[nodiscard]] int32_t num_seen_blocks(int32_t /*num_hit_blocks*/) const override { return 1; }

  [[nodiscard]] int32_t num_passed_blocks(int32_t /*num_computed*/) const override { return 0; }
  [[nodiscard]] int32_t passed_at(int32_t /*block_idx*/) const override { return kNever; }

 private:
  int32_t unit_;
  int32_t num_pages_;
  int32_t max_blocks_;
};

}  // namespace

std::unique_ptr<const KvPolicy> make_kv_policy(const KvGroupSpec& group,
                                               const KvPolicyLimits& limits) {
  WR_CHECK_GT(group.block_size, 0);
  switch (group.kind) {
    case KvKind::kFull:
      return std::make_unique<FullPolicy>(group.block_size);
    case KvKind::kSlidingWindow:
      WR_CHECK_GT(group.window, 0);
      return std::make_unique<WindowPolicy>(group.window, group.block_size, limits);
    case KvKind::kState:
      WR_CHECK_GT(group.state_pages, 0);
      return std::make_unique<StatePolicy>(group);
    case KvKind::kCross:
      break;
  }
  WR_CHECK(false, "a KV group of kind {} has no policy", kv_kind_name(group.kind));
  return nullptr;
}

}  // namespace warprow
