// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "text/tokenizer.h"

#include <string>

namespace warprow {

// Text of one request while its tokens arrive. Each piece is whole UTF-8 characters; bytes of an
// unfinished one are held (at most 3) until the next token shows what they are. The pieces in a row
// equal Tokenizer::decode of all tokens.
// Owns: up to 3 held bytes.
// Thread: one at a time.
class Detokenizer {
 public:
  struct Options {
    bool skip_special = true;
    bool continues = false;  // the tokens follow a prompt: a leading space is part of the text
  };
  // The tokenizer must outlive this.
  Detokenizer(const Tokenizer& tokenizer, Options options);

  // The text that the token completes, perhaps none. Constant time in the number of tokens so far.
  std::string push(TokenId id);
  // The end: what is held is no character any more and becomes U+FFFD. push may follow, as a new
  // text would.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  Options options_;
  bool at_start_;
  std::string held_;
};

}  // namespace warprow
