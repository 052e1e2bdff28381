// SPDX-License-Identifier: Apache-2.0
#include "text/hf_text.h"

#include "files/json_file.h"
#include "files/mapped_file.h"
#include "text/wordpiece_vocab.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using PlainJson = nlohmann::json;

Result<std::string> read_config_text(const std::string& path) {
  auto file = MappedFile::open(path);
  if (!file) {
    return tl::unexpected(file.error());
  }
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
}

// The object in the file; an empty object if the file does not exist.
Result<PlainJson> read_optional(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    return PlainJson::object();
  }
  auto json = read_json_file(path);
  if (json && !json->is_object()) {
    return fail(ErrorCode::kCorrupt, fmt::format("{}: not a JSON object", path));
  }
  return json;
}

// A special token is a text, or an object with its content.
std::string token_content(const PlainJson& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) {
    return {};
  }
  if (it->is_string()) {
    return it->get<std::string>();
  }
  return it->is_object() && it->contains("content") && (*it)["content"].is_string()
             ? (*it)["content"].get<std::string>()
             : std::string();
}

template <typename T>
std::optional<T> number(const PlainJson& config, const char* key) {
  const auto it = config.find(key);
  return it != config.end() && it->is_number() ? std::optional<T>(it->get<T>()) : std::nullopt;
}

SamplingDefaults read_sampling(const PlainJson& generation) {
  SamplingDefaults s;
  s.temperature = number<float>(generation, "temperature");
  s.top_p = number<float>(generation, "top_p");
  s.min_p = number<float>(generation, "min_p");
  s.repetition_penalty = number<float>(generation, "repetition_penalty");
  s.top_k = number<int32_t>(generation, "top_k");
  s.max_new_tokens = number<int32_t>(generation, "max_new_tokens");
  return s;
}

// eos_token_id is a number or a list of numbers.
void collect_eos(const PlainJson& config, int32_t vocab_size, std::vector<TokenId>& eos) {
  const auto it = config.find("eos_token_id");
  if (it == config.end()) {
    return;
  }
  for (const PlainJson& id : it->is_array() ? *it : PlainJson::array({*it})) {
    if (id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab_size) {
      eos.push_back(id.get<TokenId>());
    }
  }
}

struct Templates {
  std::string text;
  std::string tool_use;
};

Result<Templates> read_templates(const std::string& dir, const PlainJson& config) {
  Templates out;
  if (const std::string path = dir + "/chat_template.jinja"; std::filesystem::exists(path)) {
    auto text = read_config_text(path);
    if (!text) {
      return tl::unexpected(text.error());
    }
    out.text = *std::move(text);
    return out;
  }
  auto separate = read_optional(dir + "/chat_template.json");
  if (!separate) {
    return tl::unexpected(separate.error());
  }
  const PlainJson& holder = separate->contains("chat_template") ? *separate : config;
  const auto it = holder.find("chat_template");
  if (it == holder.end()) {
    return out;
  }
  if (it->is_string()) {
    out.text = it->get<std::string>();
  } else if (it->is_array()) {
    for (const PlainJson& named : *it) {
      if (named.is_object() && token_content(named, "name") == "default") {
        out.text = token_content(named, "template");
      } else if (named.is_object() && token_content(named, "name") == "tool_use") {
        out.tool_use = token_content(named, "template");
      }
    }
  }
  return out;
}

NamedTokens named_tokens(const PlainJson& config) {
  NamedTokens out;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    if (std::string text = token_content(config, name); !text.empty()) {
      out.emplace_back(name, std::move(text));
    }
  }
  return out;
}

// Notes the template's text in `info`.
Result<ChatTemplate> load_template(const std::string& dir,
                                   const PlainJson& config,
                                   TokenizerInfo& info) {
  auto templates = read_templates(dir, config);
  if (!templates) {
    return tl::unexpected(templates.error());
  }
  if (templates->text.empty()) {
    return fail(ErrorCode::kUnsupported, fmt::format("{}: the model has no chat template", dir));
  }
  info.chat_template = templates->text;
  return ChatTemplate::parse_of_model({templates->text, templates->tool_use, info.special_tokens});
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// The file's text; empty if the file does not exist.
Result<std::string> read_optional_text(const std::string& path) {
  return std::filesystem::exists(path) ? read_config_text(path) : std::string();
}

Result<Tokenizer> load_sentencepiece(const std::string& dir, const std::string& path) {
  auto model = MappedFile::open(path);
  auto config = read_optional_text(dir + "/tokenizer_config.json");
  auto added = read_optional_text(dir + "/added_tokens.json");
  if (!model) {
    return tl::unexpected(model.error());
  }
  for (const auto* file : {&config, &added}) {
    if (!*file) {
      return tl::unexpected(file->error());
    }
  }
  return Tokenizer::from_sentencepiece(text_of(*model), *config, *added, path);
}

Result<Tokenizer> load_wordpiece(const std::string& dir, const std::string& path) {
  auto vocab = MappedFile::open(path);
  auto config = read_optional(dir + "/tokenizer_config.json");
  if (!vocab || !config) {
    return tl::unexpected(!vocab ? vocab.error() : config.error());
  }
  return wordpiece_json(text_of(*vocab), *config, path).and_then([&](const std::string& json) {
    return Tokenizer::from_json(json, path);
  });
}

Result<Tokenizer> load_tokenizer(const std::string& dir) {
  const std::string path = dir + "/tokenizer.json";
  if (std::filesystem::exists(path)) {
    auto json = MappedFile::open(path);
    if (!json) {
      return tl::unexpected(json.error());
    }
    return Tokenizer::from_json(text_of(*json), path);
  }
  if (const std::string model = dir + "/tokenizer.model"; std::filesystem::exists(model)) {
    return load_sentencepiece(dir, model);
  }
  if (const std::string vocab = dir + "/vocab.txt"; std::filesystem::exists(vocab)) {
    return load_wordpiece(dir, vocab);
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("{}: the model has no tokenizer (tokenizer.json, tokenizer.model and "
                          "vocab.txt are missing)",
                          dir));
}

}  // namespace

Result<std::unique_ptr<TextModel>> load_hf_text(const std::string& dir) {
  auto tokenizer = load_tokenizer(dir);
  if (!tokenizer) {
    return tl::unexpected(tokenizer.error());
  }
  auto config = read_optional(dir + "/config.json");
  auto tokenizer_config = read_optional(dir + "/tokenizer_config.json");
  auto generation = read_optional(dir + "/generation_config.json");
  for (const auto* file : {&config, &tokenizer_config, &generation}) {
    if (!*file) {
      return tl::unexpected(file->error());
    }
  }
  std::vector<TokenId> eos;
  collect_eos(*config, tokenizer->vocab_size(), eos);
  collect_eos(*generation, tokenizer->vocab_size(), eos);
  if (const auto id = tokenizer->find(token_content(*tokenizer_config, "eos_token"))) {
    eos.push_back(*id);
  }
  std::sort(eos.begin(), eos.end());
  eos.erase(std::unique(eos.begin(), eos.end()), eos.end());
  std::optional<TokenId> bos = tokenizer->find(token_content(*tokenizer_config, "bos_token"));
  if (!bos) {
    const auto id = number<int64_t>(*config, "bos_token_id");
    if (id && *id >= 0 && *id < tokenizer->vocab_size()) {
      bos = static_cast<TokenId>(*id);
    }
  }
  TokenizerInfo info{
      token_content(*tokenizer_config, "tokenizer_class"), "", named_tokens(*tokenizer_config)};
  Result<ChatTemplate> chat = load_template(dir, *tokenizer_config, info);
  return std::make_unique<TextModel>(TextModel{*std::move(tokenizer),
                                               std::move(chat),
                                               bos,
                                               std::move(eos),
                                               read_sampling(*generation),
                                               std::move(info)});
}

}  // namespace warprow
