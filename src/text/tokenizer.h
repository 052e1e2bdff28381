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

// Encodes and decodes text with the model's own tokenizer: a Hugging Face tokenizer.json, a SentencePiece
// tokenizer.model, or the vocabulary in a GGUF file's metadata.
// Owns: the tokenizer of the text library.
// Thread: const methods from any thread at once.
// Invariant: ids run from 0 to vocab_size() - 1. Some ids may have no token; their texts are empty.
class Tokenizer {
 public:
  // json: the content of a tokenizer.json. where: the file's name for messages. kCorrupt if it is not a tokenizer.
  static Result<Tokenizer> from_json(std::string_view json, const std::string& where);
  // kUnsupported names an unknown tokenizer model or pre-tokenizer. The vocabulary is copied.
  static Result<Tokenizer> from_gguf(const GgufVocab& vocab, const std::string& where);

  // model: the content of a SentencePiece tokenizer.model. config, added_tokens: the contents of tokenizer_config.json
  // and added_tokens.json beside it, or empty. kUnsupported names a damaged or unknown part.
  static Result<Tokenizer> from_sentencepiece(std::string_view model,
                                              std::string_view config,
                                              std::string_view added_tokens,
                                              const std::string& where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Special tokens in the text become special tokens. add_special: adds the tokens that the model's rules put around a
  // text (BOS, EOS), if any. All bytes are accepted. Invalid UTF-8 becomes byte tokens; if the vocabulary is not
  // byte-level, it becomes U+FFFD first. A byte that the vocabulary lacks is dropped, as in the original tokenizer. If
  // the tokenizer itself fails (possible for a tokenizer.json without an unknown token), it logs an error and the
  // result is empty.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, bool add_special) const;

  struct Pair {
    std::vector<TokenId> ids;
    int32_t second =
        0;  // the first token of the second segment; 0: the tokenizer has one segment alone
  };
  // Two texts with the tokens that the model's rules put around and between them. Invalid UTF-8 becomes U+FFFD.
  // Errors: a tokenizer that is not a tokenizer.json's; a text that it cannot encode.
  [[nodiscard]] Result<Pair> encode_pair(std::string_view a, std::string_view b) const;

  // The text in UTF-8. Bytes that are not a character become U+FFFD. Ids without a token add nothing.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  // The token as the vocabulary spells it ("Ġthe", "▁the", "<0x0A>"); empty for an id without a token.
  [[nodiscard]] std::string_view token_text(TokenId id) const;
  // The bytes that the token adds to a text after other tokens (" the"); may be a part of a character.
  [[nodiscard]] std::string_view token_bytes(TokenId id) const;
  // Control tokens: BOS, end of turn, padding, ... decode leaves them out with skip_special.
  [[nodiscard]] bool is_special(TokenId id) const;
  // The id of a token by its text in the vocabulary.
  [[nodiscard]] std::optional<TokenId> find(std::string_view text) const;

  [[nodiscard]] int32_t vocab_size() const { return vocab_size_; }
  // Whether decode removes one space at the start of the text, which encode has added (SentencePiece).
  [[nodiscard]] bool strips_leading_space() const { return strips_leading_space_; }
  // For other parts of the text library. Valid as long as the tokenizer.
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
