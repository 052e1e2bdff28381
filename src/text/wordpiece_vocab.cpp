// SPDX-License-Identifier: Apache-2.0
#include "text/wordpiece_vocab.h"

#include <array>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using PlainJson = nlohmann::json;

// The lines' tokens by id. A token that occurs twice has its last id, as transformers reads it.
PlainJson read_lines(std::string_view text) {
  PlainJson vocab = PlainJson::object();
  int64_t id = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    vocab[std::string(line)] = id++;
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return vocab;
}

// A special token is a text, or an object with its content.
std::string special(const PlainJson& config, const char* key, const char* usual) {
  const auto at = config.find(key);
  if (at == config.end()) {
    return usual;
  }
  const PlainJson& value = at->is_object() && at->contains("content") ? (*at)["content"] : *at;
  return value.is_string() ? value.get<std::string>() : usual;
}

PlainJson flag(const PlainJson& config, const char* key, const PlainJson& usual) {
  const auto at = config.find(key);
  return at != config.end() && at->is_boolean() ? *at : usual;
}

PlainJson added_token(const std::string& text, const PlainJson& id) {
  return {{"id", id},
          {"content", text},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", true}};
}

PlainJson template_part(const char* kind, const std::string& id, int segment) {
  return {{kind, {{"id", id}, {"type_id", segment}}}};
}

}  // namespace

Result<std::string> wordpiece_json(std::string_view vocab,
                                   const PlainJson& config,
                                   const std::string& where) {
  const PlainJson ids = read_lines(vocab);
  const std::string cls = special(config, "cls_token", "[CLS]");
  const std::string sep = special(config, "sep_token", "[SEP]");
  const std::string unk = special(config, "unk_token", "[UNK]");
  for (const std::string& needed : std::array{unk, cls, sep}) {
    if (!ids.contains(needed)) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: no token '{}'", where, needed));
    }
  }
  PlainJson added = PlainJson::array();
  for (const std::string& text : std::array{special(config, "pad_token", "[PAD]"),
                                            unk,
                                            cls,
                                            sep,
                                            special(config, "mask_token", "[MASK]")}) {
    if (ids.contains(text)) {
      added.push_back(added_token(text, ids[text]));
    }
  }
  PlainJson around = PlainJson::object();
  for (const std::string& text : std::array{cls, sep}) {
    around[text] = {
        {"id", text}, {"ids", PlainJson::array({ids[text]})}, {"tokens", PlainJson::array({text})}};
  }
  const PlainJson first = template_part("SpecialToken", cls, 0);
  const PlainJson a = template_part("Sequence", "A", 0);
  const PlainJson behind = template_part("SpecialToken", sep, 0);
  const PlainJson b = template_part("Sequence", "B", 1);
  const PlainJson last = template_part("SpecialToken", sep, 1);
  return PlainJson{{"version", "1.0"},
                   {"added_tokens", added},
                   {"normalizer",
                    {{"type", "BertNormalizer"},
                     {"clean_text", true},
                     {"handle_chinese_chars", flag(config, "tokenize_chinese_chars", true)},
                     {"strip_accents", flag(config, "strip_accents", nullptr)},
                     {"lowercase", flag(config, "do_lower_case", true)}}},
                   {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                   {"post_processor",
                    {{"type", "TemplateProcessing"},
                     {"single", PlainJson::array({first, a, behind})},
                     {"pair", PlainJson::array({first, a, behind, b, last})},
                     {"special_tokens", around}}},
                   {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
                   {"model",
                    {{"type", "WordPiece"},
                     {"unk_token", unk},
                     {"continuing_subword_prefix", "##"},
                     {"max_input_chars_per_word", 100},
                     {"vocab", ids}}}}
      .dump();
}

}  // namespace warprow
