// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace warprow {

class Tokenizer;

// The special tokens of a vocabulary by their text. In a grammar no text matches them.
// Thread: immutable; any threads at once.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Tokenizer& tokenizer);

  // The longest special token that `text` begins with: its length and its id.
  [[nodiscard]] std::optional<std::pair<std::size_t, TokenId>> at(std::string_view text) const;

 private:
  std::map<std::string, TokenId, std::less<>> ids_;
};

// The Lark grammar of a structural tag, which says where a text is free and where it has a structure. Two forms, as
// vLLM and xgrammar have them:
//   {"type": "structural_tag", "format": FORMAT}
//   {"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [text]}
// A format is an object with a type: const_string, json_schema, regex, any_text, sequence, or, optional, plus, star,
// repeat, tag, triggered_tags, tags_with_separator, dispatch. Where a text of the client spells a special token of the
// vocabulary, the token is meant.
// kInvalidArgument names the place and what must be there; kUnsupported names a format or an option that xgrammar has
// and this engine does not.
Result<std::string> structural_tag_lark(std::string_view json, const SpecialTokens& specials);

}  // namespace warprow
