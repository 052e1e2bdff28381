// SPDX-License-Identifier: Apache-2.0
#include "worker/weight_update.h"

#include "files/model_files.h"
#include "models/registry.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow {
namespace {

std::string form_of(const TensorSource& tensor) {
  return fmt::format("{} [{}]", tensor_type_name(tensor.type), fmt::join(tensor.shape, ", "));
}

// The first tensor in which the checkpoints differ; empty if there is none.
std::string difference(const Checkpoint& loaded, const Checkpoint& other) {
  for (const TensorSource& tensor : loaded.tensors()) {
    const TensorSource* const found = other.find(tensor.name);
    if (found == nullptr) {
      return fmt::format("has no tensor {}", tensor.name);
    }
    if (found->type != tensor.type || found->shape != tensor.shape) {
      return fmt::format("tensor {} is {}, must be {} as in the loaded model",
                         tensor.name,
                         form_of(*found),
                         form_of(tensor));
    }
  }
  for (const TensorSource& tensor : other.tensors()) {
    if (loaded.find(tensor.name) == nullptr) {
      return fmt::format("has a tensor {}, which the loaded model does not have", tensor.name);
    }
  }
  return {};
}

// The model's description with the plan's lengths, which settings may have changed.
Result<DecoderSpec> read_spec(const Checkpoint& checkpoint, const DecoderSpec& planned) {
  return read_decoder_spec(checkpoint).map([&](DecoderSpec spec) {
    spec.max_position = planned.max_position;
    for (size_t i = 0; i < std::min(spec.ropes.size(), planned.ropes.size()); ++i) {
      spec.ropes[i].max_len = planned.ropes[i].max_len;
    }
    return spec;
  });
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_same_model(const ModelPlan& plan,
                                                    const std::string& model) {
  if (plan.load_format() == LoadFormat::kDummy) {
    return fail(ErrorCode::kUnsupported, "the engine runs --load-format dummy, without weights");
  }
  const Result<ModelFiles> files = resolve_model(model);
  if (!files) {
    return tl::unexpected(files.error());
  }
  Result<Checkpoint> opened = Checkpoint::open(*files);
  if (!opened) {
    return tl::unexpected(opened.error());
  }
  const Result<DecoderSpec> spec = read_spec(*opened, plan.spec);
  if (!spec) {
    return tl::unexpected(spec.error());
  }
  std::string differs = difference(*plan.checkpoint, *opened);
  if (differs.empty() && *spec != plan.spec) {
    differs = "its configuration differs from the loaded model's in more than lengths";
  }
  if (!differs.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {}", files->display_name, std::move(differs)));
  }
  return std::make_unique<Checkpoint>(*std::move(opened));
}

}  // namespace warprow
