// SPDX-License-Identifier: Apache-2.0
#include "text/text_model.h"

#include "files/gguf.h"
#include "files/model_files.h"
#include "text/gguf_vocab.h"
#include "text/hf_text.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace warprow {
namespace {

// The tokens that end the assistant's turn in the common chat formats. Converted files often name only one end token.
constexpr std::string_view kEndOfTurn[] = {"<|im_end|>",
                                           "<|eot_id|>",
                                           "<|eom_id|>",
                                           "<|end|>",
                                           "<end_of_turn>",
                                           "<|end_of_turn|>",
                                           "<end_of_utterance>"};

void add_eos(std::vector<TokenId>& eos, TokenId id) {
  const auto at = std::lower_bound(eos.begin(), eos.end(), id);
  if (at == eos.end() || *at != id) {
    eos.insert(at, id);
  }
}

ChatTemplate::Source template_source(const GgufFile& file, const GgufVocab& vocab) {
  ChatTemplate::Source source;
  source.text = file.get<std::string_view>("tokenizer.chat_template").value_or("");
  source.tool_use = file.get<std::string_view>("tokenizer.chat_template.tool_use").value_or("");
  const std::pair<const char*, std::optional<TokenId>> names[] = {{"bos_token", vocab.bos},
                                                                  {"eos_token", vocab.eos},
                                                                  {"unk_token", vocab.unk},
                                                                  {"pad_token", vocab.pad}};
  for (const auto& [name, id] : names) {
    if (id) {
      source.special_tokens.emplace_back(name, vocab.tokens[static_cast<size_t>(*id)]);
    }
  }
  return source;
}

}  // namespace

Result<std::unique_ptr<TextModel>> load_text_model(const GgufFile& file) {
  auto vocab = read_gguf_vocab(file);
  if (!vocab) {
    return tl::unexpected(vocab.error());
  }
  auto tokenizer = Tokenizer::from_gguf(*vocab, file.name());
  if (!tokenizer) {
    return tl::unexpected(tokenizer.error());
  }
  const ChatTemplate::Source source = template_source(file, *vocab);
  Result<ChatTemplate> chat =
      source.text.empty()
          ? fail(ErrorCode::kUnsupported, file.name() + ": the model has no chat template")
          : ChatTemplate::parse_of_model(source);
  std::vector<TokenId> eos;
  if (vocab->eos) {
    add_eos(eos, *vocab->eos);
  }
  for (const TokenId id : vocab->end_of_turn) {
    add_eos(eos, id);
  }
  // In the harmony format <|end|> ends one message, and the turn continues.
  const bool is_harmony = tokenizer->find("<|return|>").has_value();
  const auto add_named = [&](std::string_view name) {
    if (const auto id = tokenizer->find(name); id && tokenizer->is_special(*id)) {
      add_eos(eos, *id);
    }
  };
  for (const std::string_view name : kEndOfTurn) {
    if (name != "<|end|>" || !is_harmony) {
      add_named(name);
    }
  }
  if (is_harmony) {
    add_named("<|return|>");
    add_named("<|call|>");
  }
  return std::make_unique<TextModel>(
      TextModel{*std::move(tokenizer),
                std::move(chat),
                vocab->bos,
                std::move(eos),
                SamplingDefaults{},
                {std::string(vocab->model), std::string(source.text), source.special_tokens}});
}

Result<std::unique_ptr<TextModel>> load_text_model(const ModelFiles& model) {
  if (model.kind == ModelFiles::Kind::kHfDir) {
    return load_hf_text(model.path);
  }
  auto file = GgufFile::open(model.path);
  if (!file) {
    return tl::unexpected(file.error());
  }
  return load_text_model(*file);
}

}  // namespace warprow
