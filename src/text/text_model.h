// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

struct ModelFiles;
class GgufFile;

// The sampling defaults in generation_config.json. A request's own values take precedence.
struct SamplingDefaults {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int32_t> top_k;
  std::optional<int32_t> max_new_tokens;
};

// What clients may ask about the tokenizer.
struct TokenizerInfo {
  std::string tokenizer_class;  // as the model's files name it; empty: they do not
  std::string chat_template;    // its text, that for chats without tools; empty: none
  NamedTokens
      special_tokens;  // bos_token, eos_token, unk_token, pad_token: those that the model has
};

// A model's tokenizer, chat template, special tokens and sampling defaults.
// Owns: tokenizer and templates.
// Thread: read-only once loaded; any thread.
// Invariant: every id lies within the tokenizer's vocabulary.
struct TextModel {
  Tokenizer tokenizer;
  Result<ChatTemplate> chat_template;  // or the error if there is none
  std::optional<TokenId> bos;
  // Each of them ends a generation: the declared end tokens and the end-of-turn tokens. Sorted.
  std::vector<TokenId> eos;
  SamplingDefaults sampling;
  TokenizerInfo info = {};
};

// Reads tokenizer, chat template and generation settings: from a GGUF file's metadata, or from a
// Hugging Face directory's tokenizer.json (or SentencePiece's tokenizer.model), tokenizer_config.json, chat_template.jinja (which wins
// over the template in tokenizer_config.json), generation_config.json and config.json. kNotFound or
// kUnsupported, in one line, if there is no usable tokenizer.
Result<std::unique_ptr<TextModel>> load_text_model(const ModelFiles& model);

// The same for an open GGUF file.
Result<std::unique_ptr<TextModel>> load_text_model(const GgufFile& file);

}  // namespace warprow
