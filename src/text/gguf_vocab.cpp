// SPDX-License-Identifier: Apache-2.0
#include "text/gguf_vocab.h"

#include "files/gguf.h"

#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

template <typename T>
Result<std::vector<T>> array_or_empty(const GgufFile& file, std::string_view key) {
  return file.get_or<std::vector<T>>(key, {});
}

// The token id under `key`. Files write "none" as -1 or its unsigned equivalent.
Result<std::optional<TokenId>> token_id(const GgufFile& file,
                                        std::string_view key,
                                        size_t vocab_size) {
  if (!file.has(key)) {
    return std::nullopt;
  }
  auto id = file.require<int64_t>(key);
  if (!id) {
    return tl::unexpected(id.error());
  }
  if (*id == -1 || *id == 0xFFFFFFFF) {
    return std::nullopt;
  }
  if (*id < 0 || std::cmp_greater_equal(*id, vocab_size)) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format(
            "{}: {} is {}, but the vocabulary has {} tokens", file.name(), key, *id, vocab_size));
  }
  return static_cast<TokenId>(*id);
}

Result<void> read_ids(const GgufFile& file, GgufVocab& vocab) {
  std::optional<TokenId> eot;
  std::optional<TokenId> eom;
  const std::pair<const char*, std::optional<TokenId>*> keys[] = {
      {"tokenizer.ggml.bos_token_id", &vocab.bos},
      {"tokenizer.ggml.eos_token_id", &vocab.eos},
      {"tokenizer.ggml.unknown_token_id", &vocab.unk},
      {"tokenizer.ggml.padding_token_id", &vocab.pad},
      {"tokenizer.ggml.eot_token_id", &eot},
      {"tokenizer.ggml.eom_token_id", &eom}};
  for (const auto& [key, target] : keys) {
    auto id = token_id(file, key, vocab.tokens.size());
    if (!id) {
      return tl::unexpected(id.error());
    }
    *target = *id;
  }
  for (const auto& id : {eot, eom}) {
    if (id) {
      vocab.end_of_turn.push_back(*id);
    }
  }
  // Files of SentencePiece models may omit the ids for which the format defines a default.
  if (vocab.model == "llama" && vocab.tokens.size() > 2) {
    const auto set_default = [&](const char* key, std::optional<TokenId>& id, TokenId value) {
      if (!file.has(key)) {
        id = value;
      }
    };
    set_default("tokenizer.ggml.unknown_token_id", vocab.unk, 0);
    set_default("tokenizer.ggml.bos_token_id", vocab.bos, 1);
    set_default("tokenizer.ggml.eos_token_id", vocab.eos, 2);
  }
  return {};
}

Result<void> read_flags(const GgufFile& file, GgufVocab& vocab) {
  const std::pair<const char*, std::optional<bool>*> keys[] = {
      {"tokenizer.ggml.add_bos_token", &vocab.add_bos},
      {"tokenizer.ggml.add_eos_token", &vocab.add_eos},
      {"tokenizer.ggml.add_space_prefix", &vocab.add_space_prefix}};
  for (const auto& [key, target] : keys) {
    if (file.has(key)) {
      auto flag = file.require<bool>(key);
      if (!flag) {
        return tl::unexpected(flag.error());
      }
      *target = *flag;
    }
  }
  return {};
}

Result<void> read_arrays(const GgufFile& file, GgufVocab& vocab) {
  auto tokens = file.require<std::vector<std::string_view>>("tokenizer.ggml.tokens");
  auto merges = array_or_empty<std::string_view>(file, "tokenizer.ggml.merges");
  auto scores = array_or_empty<float>(file, "tokenizer.ggml.scores");
  auto types = array_or_empty<int64_t>(file, "tokenizer.ggml.token_type");
  if (!tokens) {
    return tl::unexpected(tokens.error());
  }
  if (!merges) {
    return tl::unexpected(merges.error());
  }
  if (!scores) {
    return tl::unexpected(scores.error());
  }
  if (!types) {
    return tl::unexpected(types.error());
  }
  vocab.tokens = *std::move(tokens);
  vocab.merges = *std::move(merges);
  vocab.scores = *std::move(scores);
  vocab.types.assign(types->begin(), types->end());
  return {};
}

}  // namespace

Result<GgufVocab> read_gguf_vocab(const GgufFile& file) {
  GgufVocab vocab;
  if (!file.has("tokenizer.ggml.model")) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("{}: the file has no tokenizer (no tokenizer.ggml.model)", file.name()));
  }
  auto model = file.require<std::string_view>("tokenizer.ggml.model");
  auto pre = file.get_or<std::string_view>("tokenizer.ggml.pre", "");
  if (!model) {
    return tl::unexpected(model.error());
  }
  if (!pre) {
    return tl::unexpected(pre.error());
  }
  vocab.model = *model;
  vocab.pre = *pre;
  for (auto* read : {&read_arrays, &read_ids, &read_flags}) {
    if (auto done = read(file, vocab); !done) {
      return tl::unexpected(done.error());
    }
  }
  return vocab;
}

}  // namespace warprow
