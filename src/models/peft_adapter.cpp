// SPDX-License-Identifier: Apache-2.0
#include "models/peft_adapter.h"

#include "files/printable.h"
#include "files/safetensors.h"
#include "kernels/low_rank/low_rank_pack.h"
#include "models/peft_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
// What stands before layers.N in the names of models with other parts around the decoder.
constexpr std::string_view kRoots[] = {
    "", "model.", "model.language_model.", "language_model.model.", "language_model."};

// The two tensors of a module.
struct Pair {
  const SafetensorsTensor* a = nullptr;
  const SafetensorsTensor* b = nullptr;
  std::string full_name;  // model.layers.3.self_attn.q_proj
};

// The values of a tensor as float32; nullopt if one is not finite.
std::optional<std::vector<float>> values_of_tensor(const SafetensorsFile& file,
                                                   const SafetensorsTensor& tensor) {
  const std::span<const std::byte> bytes = file.tensor_bytes(tensor);
  const bool f32 = tensor.dtype == SafetensorsDtype::kF32;
  std::vector<float> values(bytes.size() / (f32 ? sizeof(float) : sizeof(uint16_t)));
  if (f32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    const auto decode = tensor.dtype == SafetensorsDtype::kF16 ? f16_to_f32 : bf16_to_f32;
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t half = 0;
      std::memcpy(&half, bytes.data() + i * sizeof(half), sizeof(half));
      values[i] = decode(half);
    }
  }
  if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) {
    return std::nullopt;
  }
  return values;
}

// Columns [first, first + count) of a matrix with `cols` columns.
std::vector<float> columns_of(const std::vector<float>& matrix,
                              int64_t cols,
                              int64_t first,
                              int64_t count) {
  std::vector<float> part;
  const int64_t rows = static_cast<int64_t>(matrix.size()) / cols;
  part.reserve(static_cast<size_t>(rows * count));
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = matrix.begin() + row * cols + first;
    part.insert(part.end(), begin, begin + count);
  }
  return part;
}

std::string shape_text(const SafetensorsTensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

// Reads one adapter.
class PeftTensorReader {
 public:
  PeftTensorReader(const std::string& dir,
                   std::span<const LinearSite> sites,
                   std::span<const std::string> elsewhere,
                   const BankLayout& layout,
                   int32_t max_rank,
                   std::byte* to)
      : path_(dir + "/adapter_model.safetensors"),
        sites_(sites),
        elsewhere_(elsewhere),
        layout_(layout),
        max_rank_(max_rank),
        to_(to) {}

  Result<void> read(const PeftConfig& config, const SafetensorsFile& file) {
    for (const LinearSite& site : sites_) {
      for (const LinearSitePart& part : site.parts) {
        modules_[part.module];
      }
    }
    for (const std::string& module : elsewhere_) {
      modules_[module];
    }
    for (const SafetensorsTensor& tensor : file.tensors()) {
      if (auto sorted = sort(tensor); !sorted) {
        return sorted;
      }
    }
    if (num_tensors_ == 0) {
      return fail(ErrorCode::kCorrupt, fmt::format("{}: has no tensors", path_));
    }
    size_t first_rank = 0;
    for (size_t i = 0; i < sites_.size(); ++i) {
      for (size_t p = 0; p < sites_[i].parts.size(); ++p) {
        auto rank = read_part(config, file, i, p);
        if (!rank) {
          return tl::unexpected(rank.error());
        }
        reinterpret_cast<int32_t*>(to_)[first_rank++] = *rank;
      }
    }
    return {};
  }

 private:
  [[nodiscard]] tl::unexpected<Error> refuse(ErrorCode code,
                                             const std::string& name,
                                             const std::string& why) const {
    return fail(code, fmt::format("{}: {}: {}", path_, printable(name), why));
  }

  // Finds the module whose A or B the tensor is.
  Result<void> sort(const SafetensorsTensor& tensor) {
    std::string_view name = tensor.name;
    if (name.starts_with(kPrefix)) {
      name.remove_prefix(kPrefix.size());
    }
    const bool is_a = name.ends_with(".lora_A.weight");
    if (!is_a && !name.ends_with(".lora_B.weight")) {
      return refuse(ErrorCode::kUnsupported, tensor.name, unknown_kind(name));
    }
    const std::string full(name.substr(0, name.rfind(".lora_")));
    const size_t at = full.find("layers.");
    const bool known_root = at != std::string::npos &&
                            std::ranges::count(kRoots, std::string_view(full).substr(0, at)) > 0;
    const auto found = known_root ? modules_.find(full.substr(at)) : modules_.end();
    if (found == modules_.end()) {
      return refuse(ErrorCode::kUnsupported,
                    tensor.name,
                    "the model has no linear layer of this name that takes adapters (attention's "
                    "projections and dense feed-forwards do)");
    }
    Pair& pair = found->second;
    const SafetensorsTensor*& half = is_a ? pair.a : pair.b;
    if (half != nullptr) {
      return refuse(ErrorCode::kCorrupt,
                    tensor.name,
                    fmt::format("is there twice; the other is {}", printable(half->name)));
    }
    half = &tensor;
    pair.full_name = full;
    ++num_tensors_;
    if (tensor.dtype != SafetensorsDtype::kF32 && tensor.dtype != SafetensorsDtype::kF16 &&
        tensor.dtype != SafetensorsDtype::kBF16) {
      return refuse(ErrorCode::kUnsupported,
                    tensor.name,
                    fmt::format("is {}; F32, F16 and BF16 are supported",
                                safetensors_dtype_traits(tensor.dtype).name));
    }
    return {};
  }

  static std::string unknown_kind(std::string_view name) {
    if (name.find("lora_embedding") != std::string_view::npos) {
      return "adapters of embeddings are not supported";
    }
    if (name.find("lora_magnitude_vector") != std::string_view::npos) {
      return "DoRA is not supported";
    }
    if (name.ends_with(".bias")) {
      return "biases of adapters are not supported";
    }
    return "is neither lora_A.weight nor lora_B.weight of a module";
  }

  Result<void> check_shape(const SafetensorsTensor& tensor, int64_t rows, int64_t cols) const {
    if (tensor.shape != std::vector<int64_t>{rows, cols}) {
      return refuse(ErrorCode::kCorrupt,
                    tensor.name,
                    fmt::format("has the shape {}; model and adapter_config.json need [{}, {}]",
                                shape_text(tensor),
                                rows,
                                cols));
    }
    return {};
  }

  // Writes A and B of a site's part. Returns its rank as the bank states it.
  Result<int32_t> read_part(const PeftConfig& config,
                            const SafetensorsFile& file,
                            size_t site,
                            size_t index) {
    const LinearSitePart& part = sites_[site].parts[index];
    const Pair& pair = modules_.at(part.module);
    if (pair.a == nullptr && pair.b == nullptr) {
      return 0;
    }
    if (pair.a == nullptr || pair.b == nullptr) {
      const SafetensorsTensor& half = pair.a == nullptr ? *pair.b : *pair.a;
      return refuse(
          ErrorCode::kCorrupt,
          half.name,
          fmt::format("lora_{} of this module is missing", pair.a == nullptr ? "A" : "B"));
    }
    const Result<PeftConfig::Module> module = config.of(pair.full_name);
    if (!module) {
      return fail(module.error().code,
                  fmt::format("{}: {}", config_path(), module.error().message));
    }
    if (module->r > max_rank_) {
      return refuse(ErrorCode::kInvalidArgument,
                    pair.a->name,
                    fmt::format("has rank {}; --max-lora-rank is {}", module->r, max_rank_));
    }
    if (auto fits = check_shape(*pair.a, module->r, sites_[site].module_cols); !fits) {
      return tl::unexpected(fits.error());
    }
    if (auto fits = check_shape(*pair.b, part.module_rows, module->r); !fits) {
      return tl::unexpected(fits.error());
    }
    return write_part(file, pair, *module, sites_[site], layout_.products[site], index);
  }

  Result<int32_t> write_part(const SafetensorsFile& file,
                             const Pair& pair,
                             const PeftConfig::Module& module,
                             const LinearSite& site,
                             const LowRankProduct& product,
                             size_t index) {
    const auto a = values_of_tensor(file, *pair.a);
    const auto b = values_of_tensor(file, *pair.b);
    if (!a || !b) {
      return refuse(
          ErrorCode::kCorrupt, a ? pair.b->name : pair.a->name, "has a value that is not finite");
    }
    const LowRankPart& at = product.parts[index];
    const std::vector<float> a_here = columns_of(*a, site.module_cols, site.first_col, site.k);
    pack_low_rank_a(layout_.dtype, module.r, product.k, a_here.data(), to_ + at.a);
    pack_low_rank_b(layout_.dtype,
                    module.r,
                    at.n,
                    b->data() + site.parts[index].first_row * module.r,
                    module.scale,
                    to_ + at.b);
    return stored_rank(layout_.dtype, module.r);
  }

  [[nodiscard]] std::string config_path() const {
    return std::filesystem::path(path_).parent_path().string() + "/adapter_config.json";
  }

  std::string path_;
  std::span<const LinearSite> sites_;
  std::span<const std::string> elsewhere_;
  const BankLayout& layout_;
  int32_t max_rank_;
  std::byte* to_;
  std::unordered_map<std::string, Pair> modules_;  // of the model, on all stages
  size_t num_tensors_ = 0;
};

}  // namespace

Result<void> read_peft_adapter(const std::string& dir,
                               std::span<const LinearSite> sites,
                               std::span<const std::string> elsewhere,
                               const BankLayout& layout,
                               int32_t max_rank,
                               std::byte* to) {
  const Result<PeftConfig> config = read_peft_config(dir);
  if (!config) {
    return tl::unexpected(config.error());
  }
  const Result<SafetensorsFile> file = SafetensorsFile::open(dir + "/adapter_model.safetensors");
  if (!file) {
    return tl::unexpected(file.error());
  }
  return PeftTensorReader(dir, sites, elsewhere, layout, max_rank, to).read(*config, *file);
}

}  // namespace warprow
