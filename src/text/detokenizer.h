// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "text/tokenizer.h"

#include <string>

namespace warprow {

// Decodes the tokens of one request as they arrive. Each piece has complete UTF-8 characters. The bytes of an
// incomplete character (at most 3) are held until the next token. The concatenated pieces equal Tokenizer::decode of
// all tokens.
// Owns: up to 3 held bytes.
// Thread: one at a time.
class Detokenizer {
 public:
  struct Options {
    bool skip_special = true;
    bool continues = false;  // the tokens follow a prompt: a leading space is part of the text
    // False: a special token behind another adds its own text, without a space that the decoder would put before it.
    bool spaces_between_special = true;
  };
  // The tokenizer must outlive this.
  Detokenizer(const Tokenizer& tokenizer, Options options);

  // The text that the token completes; may be empty. The time does not depend on the number of tokens so far.
  std::string push(TokenId id);
  // Ends the text: held bytes are not a character and become U+FFFD. A later push begins a new text.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  Options options_;
  bool at_start_;
  bool behind_special_ = false;
  std::string held_;
};

}  // namespace warprow
