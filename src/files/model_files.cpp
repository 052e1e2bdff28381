// SPDX-License-Identifier: Apache-2.0
#include "files/model_files.h"

#include "files/printable.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

namespace fs = std::filesystem;

struct Alias {
  std::string_view name;
  const char* file;  // in CachePaths::warprow
  uint64_t bytes;
};
constexpr std::array<Alias, 1> kAliases{{
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 98'362'432},
}};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Result<ModelFiles> resolve_alias(const Alias& alias, const CachePaths& caches) {
  const fs::path path = fs::path(caches.warprow) / alias.file;
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) {
    return fail(
        ErrorCode::kNotFound,
        fmt::format("the model '{}' is not at '{}': run './dev demo' once, which fetches it",
                    alias.name,
                    path.string()));
  }
  if (bytes != alias.bytes) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format(
            "'{}' has {} bytes instead of {}: delete it and run './dev demo' to fetch it again",
            path.string(),
            bytes,
            alias.bytes));
  }
  return ModelFiles{ModelFiles::Kind::kGguf, path.string(), std::string(alias.name)};
}

bool starts_with_gguf_magic(const fs::path& path) {
  std::array<char, 4> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  return std::string_view(magic.data(), magic.size()) == "GGUF";
}

Result<ModelFiles> resolve_file(const fs::path& path) {
  if (path.extension() == ".safetensors") {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "'{}' is a safetensors file: give the directory that holds it and its config.json",
            path.string()));
  }
  // The name decides, so that a damaged .gguf gets the reader's precise message; the content helps
  // where it has none.
  if (path.extension() != ".gguf" && !starts_with_gguf_magic(path)) {
    return fail(ErrorCode::kUnsupported, fmt::format("'{}' is not a GGUF file", path.string()));
  }
  return ModelFiles{ModelFiles::Kind::kGguf, path.string(), path.stem().string()};
}

// The .gguf files of a directory, by name.
std::vector<std::string> gguf_files_in(const fs::path& dir) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(dir, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (it->path().extension() == ".gguf") {
      found.push_back(it->path().filename().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

Result<ModelFiles> resolve_dir(const fs::path& dir, std::string display_name, WeightFiles wanted) {
  const bool weights = (wanted == WeightFiles::kNotRead && is_there(dir / "config.json")) ||
                       is_there(dir / "model.safetensors") ||
                       is_there(dir / "model.safetensors.index.json");
  if (weights && is_there(dir / "config.json")) {
    return ModelFiles{ModelFiles::Kind::kHfDir, dir.string(), std::move(display_name)};
  }
  const std::vector<std::string> ggufs = gguf_files_in(dir);
  if (!weights && ggufs.size() == 1) {
    return ModelFiles{ModelFiles::Kind::kGguf, (dir / ggufs[0]).string(), std::move(display_name)};
  }
  if (!weights && ggufs.size() > 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' holds {} GGUF files ({}, ...): name one of them",
                            dir.string(),
                            ggufs.size(),
                            ggufs[0]));
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("'{}' holds no {}",
                          dir.string(),
                          weights ? "config.json"
                                  : "model: neither model.safetensors, nor "
                                    "model.safetensors.index.json, nor a .gguf file"));
}

// `name` and `rev` become parts of a path, so they may hold only what the Hub allows in them.
bool is_hub_word(std::string_view text) {
  return !text.empty() && text.find("..") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
         });
}

bool is_hub_name(std::string_view name) {
  return is_hub_word(name) && std::count(name.begin(), name.end(), '/') <= 1 &&
         !name.starts_with('/') && !name.ends_with('/') && !name.starts_with('.');
}

// models--org--name/snapshots/<commit>; refs/<branch or tag> holds the commit.
Result<fs::path> find_snapshot(const fs::path& repo, const std::string& rev) {
  std::string commit = rev;
  std::ifstream(repo / "refs" / rev) >> commit;
  fs::path snapshot = repo / "snapshots" / commit;
  if (!is_hub_word(commit) || !is_there(snapshot)) {
    return fail(ErrorCode::kNotFound,
                fmt::format("'{}' holds no revision '{}'", repo.string(), rev));
  }
  return snapshot;
}

Result<ModelFiles> resolve_hub_name(const std::string& name,
                                    const std::string& rev,
                                    const CachePaths& caches,
                                    WeightFiles weights) {
  std::string folder = "models--" + name;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) {
    folder.replace(slash, 1, "--");
  }
  const fs::path repo = fs::path(caches.huggingface_hub) / folder;
  if (!is_there(repo)) {
    return fail(ErrorCode::kNotFound,
                fmt::format("the model '{}' is neither a path, nor the alias smollm2, nor in the "
                            "Hugging Face cache '{}'",
                            name,
                            caches.huggingface_hub));
  }
  const Result<fs::path> snapshot = find_snapshot(repo, rev);
  if (!snapshot) {
    return tl::unexpected(snapshot.error());
  }
  return resolve_dir(*snapshot, name, weights);
}

std::string name_of_dir(const fs::path& dir) {
  std::error_code ignored;
  const fs::path absolute = fs::absolute(dir, ignored).lexically_normal();
  return (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string();
}

}  // namespace

Result<ModelFiles> resolve_model(std::string_view name,
                                 const CachePaths& caches,
                                 WeightFiles weights) {
  if (name.empty()) {
    return fail(ErrorCode::kInvalidArgument, "no model is named");
  }
  for (const Alias& alias : kAliases) {
    if (name == alias.name) {
      return resolve_alias(alias, caches);
    }
  }
  const fs::path path{std::string(name)};
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return resolve_dir(path, name_of_dir(path), weights);
  }
  if (is_there(path)) {
    return resolve_file(path);
  }
  const size_t at = name.find('@');
  const std::string repo(name.substr(0, at));
  const std::string rev(at == std::string_view::npos ? "main" : name.substr(at + 1));
  if (path.extension() == ".gguf" || !is_hub_name(repo) || !is_hub_word(rev)) {
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no file or directory {}", printable(name)));
  }
  return resolve_hub_name(repo, rev, caches, weights);
}

}  // namespace warprow
