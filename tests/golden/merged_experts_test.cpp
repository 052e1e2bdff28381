// SPDX-License-Identifier: Apache-2.0
// Models whose experts are merged into tensors of all experts, with the names that transformers 5 has in memory and can
// write: the answers are those of a tensor for each expert.
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_golden.h"
#include "weights/checkpoint.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Bytes;

// The names of an expert's tensors, and of the router, behind that of the layer.
struct Names {
  std::string experts;         // in front of the expert's number
  std::string gate, up, down;  // behind it
  std::string router;
};

constexpr int32_t kLayers = 2;

// Writes the tiny model into dir with merged experts.
void write_merged(const std::string& model, const Names& names, const test::TempDir& dir) {
  const std::string from = test::tiny_dir(model);
  std::filesystem::copy(from + "/config.json", dir.path() / "config.json");
  const Checkpoint checkpoint =
      value_or_throw(Checkpoint::open({ModelFiles::Kind::kHfDir, from, model}));
  const auto bytes_of = [](const TensorSource& tensor) {
    return Bytes(tensor.data, tensor.data + tensor.bytes);
  };
  test::SafetensorsWriter writer;
  for (const TensorSource& tensor : checkpoint.tensors()) {
    if (tensor.name.find(".experts.") == std::string::npos &&
        !tensor.name.ends_with(names.router)) {
      writer.add(tensor.name, "BF16", tensor.shape, bytes_of(tensor));
    }
  }
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    Bytes gate_up;
    Bytes down;
    int64_t num_experts = 0;
    int64_t inner = 0;
    int64_t hidden = 0;
    const auto find = [&](const std::string& name) {
      return checkpoint.find(prefix + names.experts + std::to_string(num_experts) + name);
    };
    for (; find(names.gate) != nullptr; ++num_experts) {
      inner = find(names.gate)->rows;
      hidden = find(names.gate)->cols;
      for (const auto& [name, merged] : {std::pair{names.gate, &gate_up},
                                         std::pair{names.up, &gate_up},
                                         std::pair{names.down, &down}}) {
        const Bytes bytes = bytes_of(*find(name));
        merged->insert(merged->end(), bytes.begin(), bytes.end());
      }
    }
    if (num_experts == 0) {
      continue;
    }
    const TensorSource& router = *checkpoint.find(prefix + names.router);
    writer.add(prefix + "mlp.gate.weight", "BF16", router.shape, bytes_of(router));
    writer.add(
        prefix + "mlp.experts.gate_up_proj", "BF16", {num_experts, 2 * inner, hidden}, gate_up);
    writer.add(prefix + "mlp.experts.down_proj", "BF16", {num_experts, hidden, inner}, down);
  }
  dir.write("model.safetensors", writer.bytes());
}

void expect_same_answers(const std::string& model, const Names& names, int32_t num_ranks) {
  const test::TempDir dir;
  write_merged(model, names, dir);
  test::RigOptions options = test::tiny_options(model);
  options.config.model = dir.path().string();
  options.config.tensor_parallel_size = num_ranks;
  test::expect_equals_golden(options, model, num_ranks > 1 ? 1e-4F : 0.0F);
}

const Names kQwen{
    "mlp.experts.", ".gate_proj.weight", ".up_proj.weight", ".down_proj.weight", "mlp.gate.weight"};
const Names kMixtral{"block_sparse_moe.experts.",
                     ".w1.weight",
                     ".w3.weight",
                     ".w2.weight",
                     "block_sparse_moe.gate.weight"};

TEST(MergedExperts, OfQwen3) { expect_same_answers("qwen3_moe", kQwen, 1); }

TEST(MergedExperts, OfQwen3OverTwoRanks) { expect_same_answers("qwen3_moe", kQwen, 2); }

TEST(MergedExperts, OfMixtral) { expect_same_answers("mixtral", kMixtral, 1); }

}  // namespace
}  // namespace warprow
