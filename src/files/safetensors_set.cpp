// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors_set.h"

#include "files/json_file.h"
#include "files/printable.h"

#include <filesystem>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// A shard lies beside its index; any other path in the index is an error or an attack.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// Tensor names by shard: {"weight_map": {tensor: shard}}.
Result<std::map<std::string, std::vector<std::string>>> read_index(const std::string& path) {
  const Result<json> index = read_json_file(path);
  if (!index) {
    return tl::unexpected(index.error());
  }
  if (!index->is_object() || !index->contains("weight_map") ||
      !(*index)["weight_map"].is_object()) {
    return fail(ErrorCode::kCorrupt, fmt::format("'{}': there is no object 'weight_map'", path));
  }
  if ((*index)["weight_map"].empty()) {
    return fail(ErrorCode::kCorrupt, fmt::format("'{}': weight_map names no tensor", path));
  }
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, shard] : (*index)["weight_map"].items()) {
    if (!shard.is_string() || !is_plain_name(shard.get_ref<const std::string&>())) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("'{}': weight_map of {} is not the name of a file beside it",
                              path,
                              printable(tensor)));
    }
    shards[shard.get<std::string>()].push_back(tensor);
  }
  return shards;
}

}  // namespace

Result<SafetensorsSet> SafetensorsSet::open(const std::string& dir) {
  SafetensorsSet set;
  const fs::path base(dir);
  std::error_code ignored;
  if (fs::exists(base / kSingle, ignored)) {
    Result<SafetensorsFile> file = SafetensorsFile::open((base / kSingle).string());
    if (!file) {
      return tl::unexpected(std::move(file).error());
    }
    set.files_.push_back(*std::move(file));
    for (const SafetensorsTensor& tensor : set.files_[0].tensors()) {
      set.entries_.push_back({0, &tensor});
    }
    return set;
  }
  const std::string index_path = (base / kIndex).string();
  if (!fs::exists(index_path, ignored)) {
    return fail(ErrorCode::kNotFound,
                fmt::format("'{}' holds neither {} nor {}", dir, kSingle, kIndex));
  }
  const auto shards = read_index(index_path);
  if (!shards) {
    return tl::unexpected(shards.error());
  }
  for (const auto& [shard, names] : *shards) {
    Result<SafetensorsFile> file = SafetensorsFile::open((base / shard).string());
    if (!file) {
      return tl::unexpected(std::move(file).error());
    }
    for (const std::string& name : names) {
      const SafetensorsTensor* tensor = file->find(name);
      if (tensor == nullptr) {
        return fail(ErrorCode::kCorrupt,
                    fmt::format("'{}' has no tensor {}, which {} places there",
                                file->name(),
                                printable(name),
                                kIndex));
      }
      set.entries_.push_back({static_cast<int>(set.files_.size()), tensor});
    }
    set.files_.push_back(*std::move(file));
  }
  return set;
}

}  // namespace warprow
