// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "text/gguf_vocab.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct wr_tokenizer;

namespace warprow {

// Text to token ids and back, as the model's own tokenizer does it: a Hugging Face tokenizer.json,
// or the vocabulary in a GGUF file's metadata.
// Owns: the tokenizer of the text library.
// Thread: const methods from any thread at once.
// Invariant: ids run from 0 to vocab_size() - 1; some in between may name no token (their texts are
// empty).
class Tokenizer {
 public:
  // The content of a tokenizer.json; `where` stands for the file in messages. kCorrupt if it is
  // none.
  static Result<Tokenizer> from_json(std::string_view json, const std::string& where);
  // kUnsupported for a tokenizer model or pre-tokenizer that is not known, naming it. The
  // vocabulary is copied.
  static Result<Tokenizer> from_gguf(const GgufVocab& vocab, const std::string& where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Special tokens in the text are parsed as such. add_special: with the tokens that the model's
  // rules put around a text (BOS, EOS), if any. Any bytes are accepted: those that are not UTF-8
  // become byte tokens, or U+FFFD first where the vocabulary is not made of bytes; a byte that the
  // vocabulary lacks is lost, as in the original. Should the tokenizer itself fail (a
  // tokenizer.json without a token for the unknown may), it logs an error and the result is empty.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, bool add_special) const;

  // UTF-8; bytes that form no character become U+FFFD. Ids that name no token add nothing.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  // The token as the vocabulary spells it ("Ġthe", "▁the", "<0x0A>"); empty for an id that names no
  // token.
  [[nodiscard]] std::string_view token_text(TokenId id) const;
  // The bytes that it adds to a text when it follows other tokens (" the"), perhaps a part of a
  // character.
  [[nodiscard]] std::string_view token_bytes(TokenId id) const;
  // Control tokens: BOS, end of turn, padding, ... Left out when special tokens are skipped.
  [[nodiscard]] bool is_special(TokenId id) const;
  // The id of a token by its text in the vocabulary.
  [[nodiscard]] std::optional<TokenId> find(std::string_view text) const;

  [[nodiscard]] int32_t vocab_size() const { return vocab_size_; }
  // A decoded text loses one space at its very start: the one that encode put there
  // (SentencePiece).
  [[nodiscard]] bool strips_leading_space() const { return strips_leading_space_; }
  // For other parts of the text library; lives as long as the tokenizer.
  [[nodiscard]] const wr_tokenizer* handle() const { return impl_.get(); }

 private:
  struct Free {
    void operator()(wr_tokenizer* t) const;
  };
  explicit Tokenizer(wr_tokenizer* impl);

  std::unique_ptr<wr_tokenizer, Free> impl_;
  int32_t vocab_size_ = 0;
  bool strips_leading_space_ = false;
};

}  // namespace warprow
