// SPDX-License-Identifier: Apache-2.0
#include "engine/bad_words.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace warprow {

std::vector<std::vector<TokenId>> encode_bad_words(const std::vector<std::string>& texts,
                                                   const Tokenizer& tokenizer) {
  std::vector<std::vector<TokenId>> words;
  for (const std::string_view text : texts) {
    const std::string_view word =
        text.substr(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
    std::vector<TokenId> plain = tokenizer.encode(word, false);
    std::vector<TokenId> spaced = tokenizer.encode(" " + std::string(word), false);
    const bool differs =
        !plain.empty() && spaced.size() == plain.size() && spaced.front() != plain.front();
    words.push_back(std::move(plain));
    if (differs) {
      words.push_back(std::move(spaced));
    }
  }
  return words;
}

}  // namespace warprow
