// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include "base/log.h"
#include "base/utf8.h"
#include "text/textkit_call.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

std::vector<wr_text> borrow_all(const std::vector<std::string_view>& strings) {
  std::vector<wr_text> texts;
  texts.reserve(strings.size());
  for (const std::string_view s : strings) {
    texts.push_back(to_textkit(s));
  }
  return texts;
}

int64_t id_or_none(std::optional<TokenId> id) { return id ? *id : -1; }
int32_t flag_or_none(std::optional<bool> flag) { return flag ? static_cast<int32_t>(*flag) : -1; }

}  // namespace

void Tokenizer::Free::operator()(wr_tokenizer* t) const { wr_tokenizer_free(t); }

Tokenizer::Tokenizer(wr_tokenizer* impl)
    : impl_(impl),
      vocab_size_(static_cast<int32_t>(wr_tokenizer_vocab_size(impl))),
      strips_leading_space_(wr_tokenizer_strips_leading_space(impl) != 0) {}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::from_json(std::string_view json, const std::string& where) {
  wr_tokenizer* impl = nullptr;
  TextkitOwned error;
  if (wr_tokenizer_from_json(to_textkit(json), &impl, error.out()) != 0) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: {}", where, error.text()));
  }
  return Tokenizer(impl);
}

Result<Tokenizer> Tokenizer::from_gguf(const GgufVocab& vocab, const std::string& where) {
  const std::vector<wr_text> tokens = borrow_all(vocab.tokens);
  const std::vector<wr_text> merges = borrow_all(vocab.merges);
  wr_gguf_vocab v{};
  v.model = to_textkit(vocab.model);
  v.pre = to_textkit(vocab.pre);
  v.tokens = tokens.data();
  v.num_tokens = tokens.size();
  v.merges = merges.data();
  v.num_merges = merges.size();
  v.scores = vocab.scores.data();
  v.num_scores = vocab.scores.size();
  v.types = vocab.types.data();
  v.num_types = vocab.types.size();
  v.bos_id = id_or_none(vocab.bos);
  v.eos_id = id_or_none(vocab.eos);
  v.unk_id = id_or_none(vocab.unk);
  v.add_bos = flag_or_none(vocab.add_bos);
  v.add_eos = flag_or_none(vocab.add_eos);
  v.add_space_prefix = flag_or_none(vocab.add_space_prefix);
  wr_tokenizer* impl = nullptr;
  TextkitOwned error;
  if (wr_tokenizer_from_gguf(&v, &impl, error.out()) != 0) {
    return fail(ErrorCode::kUnsupported, fmt::format("{}: {}", where, error.text()));
  }
  return Tokenizer(impl);
}

Result<Tokenizer> Tokenizer::from_sentencepiece(std::string_view model,
                                                std::string_view config,
                                                std::string_view added_tokens,
                                                const std::string& where) {
  wr_tokenizer* impl = nullptr;
  TextkitOwned error;
  if (wr_tokenizer_from_sentencepiece(
          to_textkit(model), to_textkit(config), to_textkit(added_tokens), &impl, error.out()) !=
      0) {
    return fail(ErrorCode::kUnsupported, fmt::format("{}: {}", where, error.text()));
  }
  return Tokenizer(impl);
}

namespace {

std::vector<TokenId> ids_of(const TextkitOwned& ids) {
  std::vector<TokenId> out(ids.raw().size);
  if (!out.empty()) {
    std::memcpy(out.data(), ids.raw().data, ids.raw().bytes);
  }
  return out;
}

}  // namespace

Result<Tokenizer::Pair> Tokenizer::encode_pair(std::string_view a, std::string_view b) const {
  TextkitOwned ids;
  TextkitOwned error;
  size_t num_first = 0;
  if (wr_tokenizer_encode_pair(
          impl_.get(), to_textkit(a), to_textkit(b), ids.out(), &num_first, error.out()) != 0) {
    return fail(ErrorCode::kUnsupported, std::string(error.text()));
  }
  Pair pair{ids_of(ids), 0};
  if (num_first < pair.ids.size()) {
    pair.second = static_cast<int32_t>(num_first);
  }
  return pair;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special) const {
  TextkitOwned ids;
  TextkitOwned error;
  const int failed = wr_tokenizer_encode(
      impl_.get(), to_textkit(text), add_special ? 1 : 0, ids.out(), error.out());
  if (failed != 0) {
    WR_LOG_ERROR("tokenizer: {}", error.text());
    return {};
  }
  return ids_of(ids);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!skip_special || !is_special(id)) {
      bytes += token_bytes(id);
    }
  }
  std::string_view rest = bytes;
  if (strips_leading_space_ && rest.starts_with(' ')) {
    rest.remove_prefix(1);
  }
  std::string text;
  text.reserve(rest.size());
  append_utf8_lossy(rest, text);
  return text;
}

std::string_view Tokenizer::token_text(TokenId id) const {
  wr_text text{};
  wr_text bytes{};
  wr_tokenizer_token(impl_.get(), static_cast<uint32_t>(id), &text, &bytes);
  return from_textkit(text);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  wr_text text{};
  wr_text bytes{};
  wr_tokenizer_token(impl_.get(), static_cast<uint32_t>(id), &text, &bytes);
  return from_textkit(bytes);
}

bool Tokenizer::is_special(TokenId id) const {
  wr_text text{};
  wr_text bytes{};
  return wr_tokenizer_token(impl_.get(), static_cast<uint32_t>(id), &text, &bytes) ==
         WR_TOKEN_SPECIAL;
}

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
  const int64_t id = wr_tokenizer_find(impl_.get(), to_textkit(text));
  return id < 0 ? std::nullopt : std::optional<TokenId>(static_cast<TokenId>(id));
}

}  // namespace warprow
