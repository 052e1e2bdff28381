// SPDX-License-Identifier: Apache-2.0
#include "files/model_files.h"

#include "files/gguf_set.h"
#include "files/hub_name.h"
#include "files/model_alias.h"
#include "files/printable.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The file that ./dev has placed comes first.
Result<ModelFiles> resolve_alias(const ModelAlias& alias, const CachePaths& caches) {
  for (const std::string& path : {alias_path(alias, caches), alias_hub_path(alias, caches)}) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) {
      continue;
    }
    if (bytes != alias.file.size) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("'{}' has {} bytes instead of {}: delete it, and it is downloaded",
                              path,
                              bytes,
                              alias.file.size));
    }
    return ModelFiles{ModelFiles::Kind::kGguf, path, std::string(alias.name)};
  }
  return fail(ErrorCode::kNotFound,
              fmt::format("the model '{}' is neither at '{}' nor in the Hugging Face cache '{}'",
                          alias.name,
                          alias_path(alias, caches),
                          caches.huggingface_hub));
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
  // The name decides first, so that a damaged .gguf gets the reader's precise message. A file with another name is
  // recognised by its content.
  if (path.extension() != ".gguf" && !starts_with_gguf_magic(path)) {
    return fail(ErrorCode::kUnsupported, fmt::format("'{}' is not a GGUF file", path.string()));
  }
  const std::optional<GgufPart> part = parse_gguf_part(path.filename().string());
  return ModelFiles{
      ModelFiles::Kind::kGguf, path.string(), part ? part->stem : path.stem().string()};
}

void add_gguf_files(const fs::path& dir, const std::string& prefix, std::vector<std::string>& out) {
  std::error_code error;
  for (fs::directory_iterator it(dir, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (it->path().extension() == ".gguf" && !is_later_gguf_part(name)) {
      out.push_back(prefix + name);
    }
  }
}

// The .gguf files of a directory, by name; of a file in parts only the first. Hub repositories often keep parts in
// one folder per quantisation.
std::vector<std::string> gguf_files_in(const fs::path& dir) {
  std::vector<std::string> found;
  add_gguf_files(dir, "", found);
  std::error_code error;
  for (fs::directory_iterator it(dir, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) {
      add_gguf_files(it->path(), it->path().filename().string() + "/", found);
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

// models--org--name/snapshots/<commit>; refs/<branch or tag> holds the commit.
Result<fs::path> find_snapshot(const fs::path& repo, const std::string& rev) {
  std::string commit = rev;
  std::ifstream(repo / "refs" / rev) >> commit;
  fs::path snapshot = repo / "snapshots" / commit;
  const bool is_name =
      !commit.empty() && commit.front() != '.' && commit.find('/') == std::string::npos;
  if (!is_name || !is_there(snapshot)) {
    return fail(ErrorCode::kNotFound,
                fmt::format("'{}' holds no revision '{}'", repo.string(), rev));
  }
  return snapshot;
}

Result<ModelFiles> resolve_quant(const fs::path& snapshot, const HubName& name) {
  std::vector<std::string> ggufs = gguf_files_in(snapshot);
  std::erase_if(ggufs, [&](const std::string& file) { return !has_quant(file, name.quant); });
  if (ggufs.size() != 1) {
    return fail(ggufs.empty() ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument,
                fmt::format("'{}' holds {} GGUF files of quantisation {}",
                            snapshot.string(),
                            ggufs.size(),
                            name.quant));
  }
  return ModelFiles{ModelFiles::Kind::kGguf,
                    (snapshot / ggufs[0]).string(),
                    fmt::format("{}:{}", name.repo, name.quant)};
}

Result<ModelFiles> resolve_hub_name(const HubName& name,
                                    const CachePaths& caches,
                                    WeightFiles weights) {
  const fs::path repo = hub_repo_folder(caches, name);
  if (!is_there(repo)) {
    return fail(ErrorCode::kNotFound,
                fmt::format("the model '{}' is neither a path, nor the alias smollm2, nor in the "
                            "Hugging Face cache '{}'",
                            name.repo,
                            caches.huggingface_hub));
  }
  const Result<fs::path> snapshot = find_snapshot(repo, name.revision);
  if (!snapshot) {
    return tl::unexpected(snapshot.error());
  }
  return name.quant.empty() ? resolve_dir(*snapshot, name.repo, weights)
                            : resolve_quant(*snapshot, name);
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
  if (const ModelAlias* alias = find_alias(name)) {
    return resolve_alias(*alias, caches);
  }
  const fs::path path{std::string(name)};
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    return resolve_dir(path, name_of_dir(path), weights);
  }
  if (is_there(path)) {
    return resolve_file(path);
  }
  const std::optional<HubName> hub_name = parse_hub_name(name);
  if (path.extension() == ".gguf" || !hub_name) {
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no file or directory {}", printable(name)));
  }
  return resolve_hub_name(*hub_name, caches, weights);
}

}  // namespace warprow
