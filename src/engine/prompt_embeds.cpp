// SPDX-License-Identifier: Apache-2.0
#include "engine/prompt_embeds.h"

#include "base/check.h"
#include "files/safetensors.h"

#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow {
namespace {

static_assert(std::endian::native == std::endian::little);

template <typename Stored, typename ToFloat>
std::vector<float> read_values(std::span<const std::byte> bytes, const ToFloat& to_float) {
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = to_float(stored);
  }
  return values;
}

std::optional<DType> float_type(SafetensorsDtype dtype) {
  switch (dtype) {
    case SafetensorsDtype::kF32:
      return DType::kF32;
    case SafetensorsDtype::kF16:
      return DType::kF16;
    case SafetensorsDtype::kBF16:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

}  // namespace

PromptEmbeds prompt_embeds(std::span<const std::byte> bytes, DType dtype, int32_t width) {
  WR_CHECK_GT(width, 0);
  EmbeddingVectors vectors;
  vectors.width = width;
  switch (dtype) {
    case DType::kF32:
      vectors.values = read_values<float>(bytes, [](float value) { return value; });
      break;
    case DType::kF16:
      vectors.values = read_values<uint16_t>(bytes, f16_to_f32);
      break;
    case DType::kBF16:
      vectors.values = read_values<uint16_t>(bytes, bf16_to_f32);
      break;
    default:
      WR_CHECK(false, "vectors of a type that has no floats");
  }
  WR_CHECK_EQ(vectors.values.size() % static_cast<size_t>(width), 0);
  return std::make_shared<const EmbeddingVectors>(std::move(vectors));
}

Result<PromptEmbeds> read_prompt_embeds(std::span<const std::byte> file) {
  const Result<SafetensorsFile> parsed = SafetensorsFile::parse(file, "safetensors");
  if (!parsed) {
    return tl::unexpected(parsed.error());
  }
  if (parsed->tensors().size() != 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} tensors, must be one", parsed->tensors().size()));
  }
  const SafetensorsTensor& tensor = parsed->tensors().front();
  const std::optional<DType> dtype = float_type(tensor.dtype);
  if (!dtype) {
    return fail(ErrorCode::kInvalidArgument, "the tensor's type must be F32, F16 or BF16");
  }
  if (tensor.shape.size() != 2 || tensor.shape[0] < 1 || tensor.shape[1] < 1 ||
      tensor.shape[1] > std::numeric_limits<int32_t>::max()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the tensor's shape [{}] must be [tokens, hidden size]",
                            fmt::join(tensor.shape, ", ")));
  }
  return prompt_embeds(parsed->tensor_bytes(tensor), *dtype, static_cast<int32_t>(tensor.shape[1]));
}

}  // namespace warprow
