// SPDX-License-Identifier: Apache-2.0
#include "weights/checkpoint.h"

#include "files/gguf_set.h"
#include "files/json_file.h"
#include "files/printable.h"
#include "files/safetensors_set.h"

#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr const char* kUsableGguf =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, MXFP4, IQ4_NL, "
    "IQ4_XS, IQ3_XXS, IQ3_S, IQ2_XXS, IQ2_XS, IQ2_S, IQ1_S and IQ1_M are";
constexpr const char* kUsableSafetensors = "F32, F16 and BF16 are";

tl::unexpected<Error> unusable(const std::string& file,
                               std::string_view tensor,
                               std::string_view type,
                               const char* usable) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("'{}': tensor {} has the type {}, which is not supported ({})",
                          file,
                          printable(tensor),
                          type,
                          usable));
}

}  // namespace

struct Checkpoint::Sources {
  std::optional<GgufSet> gguf;
  std::optional<SafetensorsSet> safetensors;
  nlohmann::json config;
};

Checkpoint::Checkpoint(std::unique_ptr<Sources> sources) : sources_(std::move(sources)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const ModelFiles& files, WeightFiles weights) {
  auto sources = std::make_unique<Sources>();
  if (files.kind == ModelFiles::Kind::kGguf) {
    Result<GgufSet> gguf = GgufSet::open(files.path);
    if (!gguf) {
      return tl::unexpected(std::move(gguf).error());
    }
    sources->gguf = *std::move(gguf);
    Checkpoint checkpoint(std::move(sources));
    return checkpoint.add_gguf_tensors().map([&] { return std::move(checkpoint); });
  }
  const std::string config_path = (std::filesystem::path(files.path) / "config.json").string();
  Result<nlohmann::json> config = read_json_file(config_path);
  if (!config) {
    return tl::unexpected(std::move(config).error());
  }
  Result<QuantConfig> quantisation = QuantConfig::read(*config, config_path);
  if (!quantisation) {
    return tl::unexpected(std::move(quantisation).error());
  }
  if (weights == WeightFiles::kNotRead) {
    sources->config = *std::move(config);
    Checkpoint checkpoint(std::move(sources));
    checkpoint.quantisation_ = *std::move(quantisation);
    checkpoint.paths_.push_back(config_path);
    return checkpoint;
  }
  Result<SafetensorsSet> safetensors = SafetensorsSet::open(files.path);
  if (!safetensors) {
    return tl::unexpected(std::move(safetensors).error());
  }
  sources->config = *std::move(config);
  sources->safetensors = *std::move(safetensors);
  Checkpoint checkpoint(std::move(sources));
  checkpoint.quantisation_ = *std::move(quantisation);
  return checkpoint.add_safetensors_tensors().map([&] { return std::move(checkpoint); });
}

Result<void> Checkpoint::add_gguf_tensors() {
  for (const GgufFile& file : sources_->gguf->files()) {
    if (Result<void> done = add_tensors_of(file); !done) {
      return done;
    }
  }
  return {};
}

Result<void> Checkpoint::add_tensors_of(const GgufFile& file) {
  const auto number = static_cast<int>(paths_.size());
  paths_.push_back(file.name());
  for (const GgufTensor& tensor : file.tensors()) {
    const auto type = tensor_type_of(tensor.type);
    if (!type) {
      return unusable(file.name(), tensor.name, ggml_type_traits(tensor.type)->name, kUsableGguf);
    }
    TensorSource source;
    source.name = tensor.name;
    source.type = *type;
    source.shape.assign(tensor.ne.rend() - tensor.n_dims, tensor.ne.rend());
    source.cols = tensor.ne[0];
    source.rows = tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
    source.data = file.tensor_bytes(tensor).data();
    source.bytes = tensor.bytes;
    source.file = number;
    source.offset = tensor.offset;
    add(std::move(source));
  }
  return {};
}

Result<void> Checkpoint::add_safetensors_tensors() {
  const SafetensorsSet& set = *sources_->safetensors;
  for (const SafetensorsFile& file : set.files()) {
    paths_.push_back(file.name());
  }
  for (const SafetensorsSet::Entry& entry : set.entries()) {
    const SafetensorsFile& file = set.files()[static_cast<size_t>(entry.file)];
    const SafetensorsTensor& tensor = *entry.tensor;
    const auto type = tensor_type_of(tensor.dtype);
    if (!type) {
      const std::string_view name = safetensors_dtype_traits(tensor.dtype).name;
      return unusable(file.name(), tensor.name, name, kUsableSafetensors);
    }
    TensorSource source;
    source.name = tensor.name;
    source.type = *type;
    source.shape = tensor.shape;
    source.cols = tensor.shape.empty() ? 1 : tensor.shape.back();
    source.rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
      source.rows *= tensor.shape[i];
    }
    source.data = file.tensor_bytes(tensor).data();
    source.bytes = tensor.bytes;
    source.file = entry.file;
    source.offset = tensor.offset;
    add(std::move(source));
  }
  return {};
}

void Checkpoint::add(TensorSource tensor) {
  tensor.row_bytes = tensor_row_bytes(tensor.type, tensor.cols);
  if (has_values(tensor.type) || quantisation_.method != QuantMethod::kNone) {
    total_bytes_ += tensor.bytes;
  }
  index_.emplace(tensor.name, tensors_.size());
  tensors_.push_back(std::move(tensor));
}

const TensorSource* Checkpoint::find(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

bool Checkpoint::has_weight(std::string_view name) const {
  const std::string module(name.substr(0, name.rfind('.') + 1));
  return find(name) != nullptr || find(std::string(name) + "_packed") != nullptr ||
         find(module + "qweight") != nullptr;
}

Result<const TensorSource*> Checkpoint::require(std::string_view name) const {
  if (const TensorSource* found = find(name)) {
    return found;
  }
  return fail(ErrorCode::kCorrupt, fmt::format("'{}' has no tensor '{}'", paths_.front(), name));
}

Result<const TensorSource*> Checkpoint::require_values(std::string_view name) const {
  Result<const TensorSource*> found = require(name);
  if (found && !has_values((*found)->type)) {
    const std::string& file = paths_[static_cast<size_t>((*found)->file)];
    return unusable(file, name, tensor_type_name((*found)->type), kUsableSafetensors);
  }
  return found;
}

const GgufFile* Checkpoint::gguf() const {
  return sources_->gguf ? &sources_->gguf->files().front() : nullptr;
}

const nlohmann::json* Checkpoint::config_json() const {
  return sources_->gguf ? nullptr : &sources_->config;
}

void Checkpoint::drop_pages(const TensorSource& tensor, uint64_t begin, uint64_t bytes) const {
  const auto file = static_cast<size_t>(tensor.file);
  if (sources_->gguf) {
    sources_->gguf->files()[file].drop_pages(tensor.offset + begin, bytes);
  } else {
    sources_->safetensors->files()[file].drop_pages(tensor.offset + begin, bytes);
  }
}

}  // namespace warprow
