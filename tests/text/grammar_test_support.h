// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/text/text_test_support.h"
#include "text/grammar.h"

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace warprow::test {

// Uses the default model's vocabulary. Call it after WR_NEED_SMOLLM2.
inline GrammarCompiler& smollm2_compiler() {
  static GrammarCompiler compiler = [] {
    const TextModel& model = *smollm2();
    return value_or_throw(GrammarCompiler::make(model.tokenizer, model.eos));
  }();
  return compiler;
}

class Mask {
 public:
  explicit Mask(int32_t vocab_size) : words_((static_cast<std::size_t>(vocab_size) + 31) / 32) {}

  std::span<uint32_t> words() { return words_; }
  [[nodiscard]] bool allows(TokenId id) const {
    const auto bit = static_cast<uint32_t>(id);
    return (words_[bit / 32] >> (bit % 32) & 1U) != 0;
  }
  [[nodiscard]] std::vector<TokenId> allowed() const {
    std::vector<TokenId> ids;
    for (std::size_t word = 0; word < words_.size(); ++word) {
      for (uint32_t bits = words_[word]; bits != 0; bits &= bits - 1) {
        ids.push_back(static_cast<TokenId>(word * 32) + std::countr_zero(bits));
      }
    }
    return ids;
  }

 private:
  std::vector<uint32_t> words_;
};

}  // namespace warprow::test
