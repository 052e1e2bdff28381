// SPDX-License-Identifier: Apache-2.0
#include "files/hub_name.h"

#include "files/gguf_set.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow {
namespace {

constexpr const char* kUsualQuant = "Q4_K_M";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kTexts[] = {"config.json",
                                  "generation_config.json",
                                  "tokenizer.json",
                                  "tokenizer_config.json",
                                  "special_tokens_map.json",
                                  "chat_template.jinja",
                                  "chat_template.json"};
// Instead of a tokenizer.json.
constexpr const char* kSentencePiece[] = {"tokenizer.model", "added_tokens.json"};

bool is_hub_word(std::string_view text) {
  return !text.empty() && text.find("..") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
         });
}

bool is_repo(std::string_view name) {
  return is_hub_word(name) && std::count(name.begin(), name.end(), '/') <= 1 &&
         !name.starts_with('/') && !name.ends_with('/') && !name.starts_with('.');
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return out;
}

// A model's own file: not the projector of a vision model, nor statistics for quantising.
bool is_gguf_model(std::string_view file) {
  const std::string name = lower(file.substr(file.rfind('/') + 1));
  return name.ends_with(".gguf") && !name.starts_with("mmproj") &&
         name.find("imatrix") == std::string::npos;
}

// A .gguf file and its other parts, if it has any. The first part comes last.
Result<std::vector<HubFile>> with_parts(const HubFile& first, const std::vector<HubFile>& files) {
  std::vector<HubFile> out;
  const std::optional<GgufPart> part = parse_gguf_part(first.name);
  for (int number = part ? part->count : 1; number > 1; --number) {
    const std::string name = gguf_part_name(*part, number);
    const auto found = std::find_if(
        files.begin(), files.end(), [&name](const HubFile& file) { return file.name == name; });
    if (found == files.end()) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("'{}' is there, but '{}' is not", first.name, name));
    }
    out.push_back(*found);
  }
  out.push_back(first);
  return out;
}

Result<std::vector<HubFile>> choose_gguf(const std::vector<HubFile>& files, const HubName& name) {
  std::vector<HubFile> ggufs;
  std::copy_if(files.begin(), files.end(), std::back_inserter(ggufs), [](const HubFile& file) {
    return is_gguf_model(file.name) && !is_later_gguf_part(file.name);
  });
  std::vector<HubFile> chosen;
  const bool only_one = name.quant.empty() && ggufs.size() == 1;
  std::copy_if(ggufs.begin(), ggufs.end(), std::back_inserter(chosen), [&](const HubFile& file) {
    return only_one || has_quant(file.name, name.quant.empty() ? kUsualQuant : name.quant);
  });
  if (chosen.size() == 1) {
    return with_parts(chosen.front(), files);
  }
  if (!chosen.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' has {} files for one quantisation ({}, ...)",
                            name.repo,
                            chosen.size(),
                            chosen.front().name));
  }
  std::vector<std::string> names;
  std::transform(ggufs.begin(), ggufs.end(), std::back_inserter(names), [](const HubFile& file) {
    return file.name;
  });
  if (names.empty()) {
    return fail(ErrorCode::kNotFound,
                fmt::format("'{}' holds neither safetensors nor GGUF files", name.repo));
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' holds {}: name the quantisation as {}:QUANT",
                          name.repo,
                          fmt::join(names, ", "),
                          name.repo));
}

}  // namespace

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName out;
  if (const size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    out.quant = std::string(text.substr(colon + 1));
    text = text.substr(0, colon);
    if (!is_hub_word(out.quant) || out.quant.find('/') != std::string::npos) {
      return std::nullopt;
    }
  }
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    out.revision = std::string(text.substr(at + 1));
    text = text.substr(0, at);
  }
  out.repo = std::string(text);
  if (!is_repo(out.repo) || !is_hub_word(out.revision) || out.revision.starts_with('/')) {
    return std::nullopt;
  }
  return out;
}

std::string hub_repo_folder(const CachePaths& caches, const HubName& name) {
  std::string folder = "models--" + name.repo;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) {
    folder.replace(slash, 1, "--");
  }
  return (std::filesystem::path(caches.huggingface_hub) / folder).string();
}

bool has_quant(std::string_view file, std::string_view quant) {
  const std::string name = lower(file);
  const std::string word = lower(quant);
  const auto is_edge = [](char c) { return c == '.' || c == '-' || c == '/'; };
  for (size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || is_edge(name[at - 1])) && end < name.size() && is_edge(name[end])) {
      return true;
    }
  }
  return false;
}

Result<std::vector<HubFile>> choose_hub_files(const std::vector<HubFile>& files,
                                              const HubName& name,
                                              WeightFiles weights) {
  const auto find = [&files](std::string_view wanted) {
    return std::find_if(
        files.begin(), files.end(), [wanted](const HubFile& file) { return file.name == wanted; });
  };
  const bool sharded = find(kIndex) != files.end();
  const bool has_tensors = sharded || find(kSingle) != files.end();
  const bool texts_only = weights == WeightFiles::kNotRead && find(kTexts[0]) != files.end();
  if (!name.quant.empty() || (!has_tensors && !texts_only)) {
    return choose_gguf(files, name);
  }
  std::vector<HubFile> out;
  for (const char* text : kTexts) {
    if (const auto found = find(text); found != files.end()) {
      out.push_back(*found);
    }
  }
  const bool has_tokenizer = find("tokenizer.json") != files.end();
  for (const char* text : kSentencePiece) {
    if (const auto found = find(text); found != files.end() && !has_tokenizer) {
      out.push_back(*found);
    }
  }
  if (texts_only) {
    return out;
  }
  if (sharded) {
    std::copy_if(files.begin(), files.end(), std::back_inserter(out), [](const HubFile& file) {
      return file.name.starts_with("model-") && file.name.ends_with(".safetensors");
    });
  }
  out.push_back(*find(sharded ? kIndex : kSingle));
  return out;
}

}  // namespace warprow
