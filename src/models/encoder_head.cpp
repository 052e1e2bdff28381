// SPDX-License-Identifier: Apache-2.0
#include "models/encoder_head.h"

#include "models/metadata.h"
#include "models/tensor_rows.h"

#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// A vector of `count` values; empty if the tensor is missing and need not be there.
Result<std::vector<float>> read_values(const Checkpoint& checkpoint,
                                       const std::string& name,
                                       int64_t count,
                                       bool required) {
  if (!required && checkpoint.find(name) == nullptr) {
    return std::vector<float>();
  }
  const auto tensor = checkpoint.require_values(name);
  if (!tensor) {
    return tl::unexpected(tensor.error());
  }
  if ((*tensor)->rows != 1 || (*tensor)->cols != count) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("tensor {} is {} x {}, expected {} values",
                            name,
                            (*tensor)->rows,
                            (*tensor)->cols,
                            count));
  }
  return read_rows(**tensor, {0});
}

// The layer `name`.weight, `name`.bias, which may be missing.
Result<PoolerLayer> read_layer(const Checkpoint& checkpoint,
                               const std::string& name,
                               int32_t num_inputs,
                               PoolerLayer::Activation activation) {
  const auto weight = checkpoint.require_values(name + ".weight");
  if (!weight) {
    return tl::unexpected(weight.error());
  }
  if ((*weight)->cols != num_inputs || (*weight)->rows < 1) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("tensor {}.weight is {} x {}, expected rows of {}",
                            name,
                            (*weight)->rows,
                            (*weight)->cols,
                            num_inputs));
  }
  std::vector<int64_t> rows(static_cast<size_t>((*weight)->rows));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  auto values = read_rows(**weight, rows);
  auto bias = read_values(checkpoint, name + ".bias", (*weight)->rows, false);
  if (!values || !bias) {
    return tl::unexpected(!values ? values.error() : bias.error());
  }
  PoolerLayer layer;
  layer.num_inputs = num_inputs;
  layer.num_outputs = static_cast<int32_t>((*weight)->rows);
  layer.weight = *std::move(values);
  layer.bias = *std::move(bias);
  layer.activation = activation;
  return layer;
}

// The names of the two layers.
struct HeadNames {
  std::string dense;
  std::string labels;
};

// BERT has its dense layer beside the encoder, RoBERTa with the labels.
HeadNames head_names(const Checkpoint& checkpoint) {
  if (checkpoint.find("classifier.out_proj.weight") != nullptr) {
    return {"classifier.dense", "classifier.out_proj"};
  }
  if (checkpoint.find("head.dense.weight") != nullptr) {
    return {"head.dense", "classifier"};
  }
  return {"bert.pooler.dense", "classifier"};
}

// What ModernBERT's head has besides: another activation, a norm, and perhaps a mean.
Result<void> read_modern_head(const Checkpoint& checkpoint,
                              const DecoderSpec& spec,
                              PoolerLayer& dense,
                              PoolingMethod& method) {
  const auto metadata = ModelMetadata::open(checkpoint);
  if (!metadata) {
    return tl::unexpected(metadata.error());
  }
  const auto pooling = metadata->string_or("classifier_pooling", "", "cls");
  const auto activation = metadata->string_or("classifier_activation", "", "gelu");
  if (!pooling || !activation) {
    return tl::unexpected(!pooling ? pooling.error() : activation.error());
  }
  if (*pooling != "cls" && *pooling != "mean") {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("config.json: classifier_pooling {} is not supported (cls and mean are)",
                    *pooling));
  }
  if (*activation != "gelu") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("config.json: classifier_activation {} is not supported (gelu is)",
                            *activation));
  }
  method = *pooling == "cls" ? PoolingMethod::kFirst : PoolingMethod::kMean;
  dense.activation = PoolerLayer::Activation::kGelu;
  auto weight = read_values(checkpoint, "head.norm.weight", dense.num_outputs, true);
  auto bias = read_values(checkpoint, "head.norm.bias", dense.num_outputs, false);
  if (!weight || !bias) {
    return tl::unexpected(!weight ? weight.error() : bias.error());
  }
  dense.norm_weight = *std::move(weight);
  dense.norm_bias = *std::move(bias);
  dense.norm_eps = spec.rms_eps;
  return {};
}

}  // namespace

Result<void> read_encoder_head(const Checkpoint& checkpoint,
                               const DecoderSpec& spec,
                               Pooler& pooler) {
  const HeadNames names = head_names(checkpoint);
  auto dense =
      read_layer(checkpoint, names.dense, spec.hidden_size, PoolerLayer::Activation::kTanh);
  if (!dense) {
    return tl::unexpected(dense.error());
  }
  pooler.facts.method = PoolingMethod::kFirst;
  if (names.dense == "head.dense") {
    auto read = read_modern_head(checkpoint, spec, *dense, pooler.facts.method);
    if (!read) {
      return read;
    }
  }
  auto labels =
      read_layer(checkpoint, names.labels, dense->num_outputs, PoolerLayer::Activation::kNone);
  if (!labels) {
    return tl::unexpected(labels.error());
  }
  pooler.facts.width = labels->num_outputs;
  pooler.layers.push_back(*std::move(dense));
  pooler.layers.push_back(*std::move(labels));
  return {};
}

}  // namespace warprow
