// SPDX-License-Identifier: Apache-2.0
// PEFT checkpoints: what is read, and that bad ones are refused with one line that names what is wrong.
#include "models/peft_adapter.h"

#include "kernels/low_rank/low_rank_pack.h"
#include "models/bank_layout.h"
#include "models/module_pattern.h"
#include "tests/support/random_adapter.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::Bytes;
using test::RandomAdapter;
using test::RandomModel;
using test::SafetensorsWriter;
using test::TempDir;
using Json = nlohmann::json;

const RandomModel kModel{.head_dim = 8,
                         .num_heads = 4,
                         .num_kv_heads = 2,
                         .num_layers = 1,
                         .hidden_size = 16,
                         .intermediate_size = 24};
constexpr int32_t kMaxRank = 8;

// fused: q, k and v are rows of one module.
std::vector<LinearSite> sites_of(bool fused = false) {
  const std::string at = "layers.0.self_attn.";
  std::vector<LinearSitePart> qkv;
  int64_t column = 0;
  for (const auto& [name, rows] : {std::pair{"q_proj", 32}, {"k_proj", 16}, {"v_proj", 16}}) {
    qkv.push_back(fused ? LinearSitePart{at + "qkv_proj", 64, column, rows, column}
                        : LinearSitePart{at + name, rows, 0, rows, column});
    column += rows;
  }
  return {{16, 16, 0, qkv},
          {32, 32, 0, {{at + "o_proj", 16, 0, 16, 0}}},
          {16,
           16,
           0,
           {{"layers.0.mlp.gate_proj", 24, 0, 24, 0}, {"layers.0.mlp.up_proj", 24, 0, 24, 24}}},
          {24, 24, 0, {{"layers.0.mlp.down_proj", 16, 0, 16, 0}}}};
}

struct Bank {
  std::vector<LinearSite> sites = sites_of();
  std::vector<std::string> elsewhere;
  BankLayout layout = value_or_throw(make_bank_layout(sites, DType::kF32, kMaxRank));
  std::vector<std::byte> bytes = std::vector<std::byte>(static_cast<size_t>(layout.bytes));

  Result<void> read(const std::string& dir) {
    return read_peft_adapter(dir, sites, elsewhere, layout, kMaxRank, bytes.data());
  }
  [[nodiscard]] int32_t rank(size_t site, size_t part) const {
    int32_t rank = 0;
    const size_t at = static_cast<size_t>(layout.products[site].first_rank) + part;
    std::memcpy(&rank, bytes.data() + at * sizeof(rank), sizeof(rank));
    return rank;
  }
  [[nodiscard]] float value(int64_t at, int64_t index) const {
    float v = 0;
    std::memcpy(&v, bytes.data() + at + index * static_cast<int64_t>(sizeof(v)), sizeof(v));
    return v;
  }
};

TEST(PeftAdapter, ReadsRanksAndScalesByPattern) {
  const TempDir dir;
  const RandomAdapter adapter{
      .r = 4,
      .alpha = 8,
      .targets = {"q_proj", "v_proj", "down_proj"},
      .more = {{"rank_pattern", {{"v_proj", 2}}}, {"alpha_pattern", {{"self_attn.v_proj", 3}}}},
      .ranks = {{"v_proj", 2}},
      .alphas = {{"v_proj", 3}}};
  Bank bank;
  const Result<void> read = bank.read(adapter.write(dir, "a", kModel));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(bank.rank(0, 0), 4);
  EXPECT_EQ(bank.rank(0, 1), 0);
  EXPECT_EQ(bank.rank(0, 2), 2);
  EXPECT_EQ(bank.rank(1, 0), 0);
  EXPECT_EQ(bank.rank(3, 0), 4);
  for (const RandomAdapter::Pair& pair : adapter.pairs(kModel)) {
    if (pair.module.ends_with("v_proj")) {
      const LowRankPart& part = bank.layout.products[0].parts[2];
      for (int64_t j = 0; j < pair.rows; ++j) {
        for (int64_t r = 0; r < 2; ++r) {
          EXPECT_FLOAT_EQ(bank.value(part.b, r * pair.rows + j),
                          pair.b[static_cast<size_t>(j * 2 + r)] * 1.5F);
        }
      }
      for (size_t i = 0; i < pair.a.size(); ++i) {
        EXPECT_EQ(bank.value(part.a, static_cast<int64_t>(i)), pair.a[i]);
      }
    }
  }
}

TEST(PeftAdapter, DividesAMergedModule) {
  const TempDir dir;
  std::vector<float> a(2 * 16, 1.0F);
  std::vector<float> b(64 * 2);
  for (size_t i = 0; i < b.size(); ++i) {
    b[i] = static_cast<float>(i);
  }
  SafetensorsWriter writer;
  const std::string at = "base_model.model.model.layers.0.self_attn.qkv_proj.lora_";
  writer.add_f32(at + "A.weight", {2, 16}, a).add_f32(at + "B.weight", {64, 2}, b);
  dir.write("adapter_model.safetensors", writer.bytes());
  dir.write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2})");
  Bank bank;
  bank.sites = sites_of(true);
  const Result<void> read = bank.read(dir.path().string());
  ASSERT_TRUE(read) << read.error().message;
  for (const size_t part : {0U, 1U, 2U}) {
    EXPECT_EQ(bank.rank(0, part), 2);
    const LowRankPart& to = bank.layout.products[0].parts[part];
    EXPECT_EQ(bank.value(to.b, 0), static_cast<float>(to.y_col * 2));
    EXPECT_EQ(bank.value(to.b, to.n), static_cast<float>(to.y_col * 2 + 1));
  }
}

// B is cut by the outputs of a rank, A by its inputs.
TEST(PeftAdapter, ReadsTheRanksPart) {
  const TempDir dir;
  const RandomAdapter adapter{.r = 4, .targets = {"k_proj", "o_proj"}};
  const std::string path = adapter.write(dir, "a", kModel);
  Bank bank;
  bank.sites[0].parts[1] = {"layers.0.self_attn.k_proj", 16, 8, 8, 32};
  bank.sites[1].k = 8;
  bank.sites[1].first_col = 24;
  bank.layout = value_or_throw(make_bank_layout(bank.sites, DType::kF32, kMaxRank));
  const Result<void> read = bank.read(path);
  ASSERT_TRUE(read) << read.error().message;
  for (const RandomAdapter::Pair& pair : adapter.pairs(kModel)) {
    const bool is_k = pair.module.ends_with("k_proj");
    const LowRankPart& part = bank.layout.products[is_k ? 0 : 1].parts[is_k ? 1 : 0];
    const int64_t rows = is_k ? 8 : 16;
    const int64_t first_row = is_k ? 8 : 0;
    const int64_t cols = is_k ? 16 : 8;
    const int64_t first_col = is_k ? 0 : 24;
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < cols; ++i) {
        EXPECT_EQ(bank.value(part.a, r * cols + i),
                  pair.a[static_cast<size_t>(r * pair.cols + first_col + i)]);
      }
      for (int64_t j = 0; j < rows; ++j) {
        EXPECT_FLOAT_EQ(bank.value(part.b, r * rows + j),
                        pair.b[static_cast<size_t>((first_row + j) * 4 + r)] * 4.0F);
      }
    }
  }
}

// Tensors for layers of other stages are left to them; those of no stage are refused.
TEST(PeftAdapter, LeavesModulesOfOtherStages) {
  const TempDir dir;
  RandomModel model = kModel;
  model.num_layers = 2;
  const RandomAdapter adapter{.r = 4, .targets = {"q_proj"}};
  const std::string path = adapter.write(dir, "a", model);
  Bank bank;
  const Result<void> refused = bank.read(path);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("layers.1.self_attn.q_proj"), std::string::npos);
  bank.elsewhere = {"layers.1.self_attn.q_proj"};
  const Result<void> read = bank.read(path);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(bank.rank(0, 0), 4);
}

// Tiles have vectors of eight elements.
TEST(BankLayout, NamesThePartThatIsNoMultipleOfEight) {
  std::vector<LinearSite> sites = sites_of();
  sites[3].k = 12;
  EXPECT_TRUE(make_bank_layout(sites, DType::kF32, kMaxRank));
  Result<BankLayout> layout = make_bank_layout(sites, DType::kBF16, kMaxRank);
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().message,
            "--enable-lora: layers.0.mlp.down_proj has 12 inputs on a rank, which is no multiple "
            "of 8");
  sites = sites_of();
  sites[2].parts[1].rows = 12;
  layout = make_bank_layout(sites, DType::kBF16, kMaxRank);
  ASSERT_FALSE(layout);
  EXPECT_NE(layout.error().message.find("up_proj has 12 outputs"), std::string::npos);
}

void expect_has(const std::string& line, const std::string& part) {
  EXPECT_NE(line.find(part), std::string::npos) << line << "\nhas no " << part;
}

// The line of the refusal of this configuration, or of these tensors.
std::string adapter_refusal(const Json& more,
                            const std::function<void(SafetensorsWriter&)>& change = {}) {
  const TempDir dir;
  const RandomAdapter adapter{.r = 4, .targets = {"q_proj"}, .more = more};
  const std::string path = adapter.write(dir, "a", kModel);
  if (change) {
    SafetensorsWriter writer;
    for (const RandomAdapter::Pair& pair : adapter.pairs(kModel)) {
      const std::string at = "base_model.model." + pair.module;
      writer.add_f32(at + ".lora_A.weight", {pair.rank, pair.cols}, pair.a);
      writer.add_f32(at + ".lora_B.weight", {pair.rows, pair.rank}, pair.b);
    }
    change(writer);
    dir.write("a/adapter_model.safetensors", writer.bytes());
  }
  Bank bank;
  const Result<void> read = bank.read(path);
  if (read) {
    return "";
  }
  EXPECT_EQ(read.error().message.find('\n'), std::string::npos) << read.error().message;
  expect_has(read.error().message, path + "/adapter_");
  return read.error().message;
}

TEST(PeftAdapter, RefusesConfigurations) {
  expect_has(adapter_refusal({{"peft_type", "IA3"}}), "peft_type: 'IA3' is not LORA");
  expect_has(adapter_refusal({{"use_dora", true}}), "use_dora: true is not supported: DoRA");
  expect_has(adapter_refusal({{"bias", "all"}}), "bias: 'all'");
  expect_has(adapter_refusal({{"lora_bias", true}}), "lora_bias");
  expect_has(adapter_refusal({{"modules_to_save", {"lm_head"}}}), "modules_to_save: [\"lm_head\"]");
  expect_has(adapter_refusal({{"target_parameters", {"mlp.experts.gate_up_proj"}}}),
             "target_parameters");
  expect_has(adapter_refusal({{"trainable_token_indices", {1}}}), "trainable_token_indices");
  expect_has(adapter_refusal({{"init_lora_weights", "pissa_niter_4"}}), "init_lora_weights");
  expect_has(adapter_refusal({{"r", 0}}), "r: 0 must be a whole number from 1 to 65536");
  expect_has(adapter_refusal({{"r", "8"}}), "r: '8' must be");
  expect_has(adapter_refusal({{"r", nullptr}}), "r: null must be");
  expect_has(adapter_refusal({{"lora_alpha", "x"}}), "lora_alpha");
  expect_has(adapter_refusal({{"rank_pattern", {1}}}), "rank_pattern");
  expect_has(adapter_refusal({{"rank_pattern", {{"q_proj", 0}}}}), "rank_pattern: 0");
  expect_has(adapter_refusal({{"rank_pattern", {{"q_proj", 4}, {".*q_proj", 8}}}}), "both match");
  expect_has(adapter_refusal({{"rank_pattern", {{"(?=q)q_proj", 4}}}}), "(? is not supported");
  expect_has(adapter_refusal({{"rank_pattern", {{".*.*.*.*.*.*.*.*x", 4}}}}), "too many steps");
  expect_has(adapter_refusal({{"rank_pattern", {{"q_(proj", 4}}}}), "not closed");
  expect_has(adapter_refusal({{"r", 6}}), "need [6, 16]");
}

TEST(PeftAdapter, RefusesTensors) {
  const Bytes floats(4 * 16 * 4);
  const std::string layer = "base_model.model.model.layers.0.";
  const auto with = [&](const std::string& name, const std::vector<int64_t>& shape, size_t bytes) {
    return adapter_refusal(Json::object(), [&](SafetensorsWriter& writer) {
      writer.add(name, "F32", shape, Bytes(bytes));
    });
  };
  EXPECT_EQ(adapter_refusal(Json::object()), "");
  expect_has(with(layer + "mlp.experts.0.up_proj.lora_A.weight", {4, 16}, 256),
             "has no linear layer");
  expect_has(with("base_model.model.lm_head.lora_A.weight", {4, 16}, 256), "lm_head.lora_A.weight");
  expect_has(with("base_model.model.model.embed_tokens.lora_embedding_A", {4, 16}, 256),
             "embeddings");
  expect_has(with(layer + "self_attn.q_proj.lora_magnitude_vector.weight", {4}, 16), "DoRA");
  expect_has(with(layer + "self_attn.q_proj.bias", {4}, 16), "biases");
  expect_has(with(layer + "self_attn.q_proj.weight", {4}, 16), "neither lora_A.weight nor");
  expect_has(with(layer + "self_attn.k_proj.lora_A.weight", {4, 16}, 256),
             "lora_B of this module is missing");
  expect_has(with(layer + "self_attn.o_proj.lora_B.weight", {16, 4}, 256),
             "lora_A of this module is missing");
  expect_has(with("model.layers.0.self_attn.q_proj.lora_A.weight", {4, 16}, 256), "is there twice");
  expect_has(with("evil.layers.0.self_attn.k_proj.lora_A.weight", {4, 16}, 256),
             "has no linear layer");
  const auto changed = [&](const std::function<void(Json&)>& change) {
    return adapter_refusal(Json::object(),
                           [&](SafetensorsWriter& writer) { change(writer.header()); });
  };
  const std::string a = layer + "self_attn.q_proj.lora_A.weight";
  const std::string b = layer + "self_attn.q_proj.lora_B.weight";
  expect_has(changed([&](Json& header) { header[a]["shape"] = {16, 4}; }), "has the shape [16, 4]");
  expect_has(changed([&](Json& header) { header[b]["shape"] = {4, 32}; }), "need [32, 4]");
  expect_has(changed([&](Json& header) { header[a]["shape"] = {2, 16}; }),
             "adapter_model.safetensors");
  expect_has(changed([&](Json& header) { header[a]["dtype"] = "I32"; }), "is I32");
  expect_has(adapter_refusal(Json::object(),
                             [&](SafetensorsWriter& writer) {
                               writer.header().erase(a);
                               writer.header().erase(b);
                               writer = SafetensorsWriter();
                             }),
             "has no tensors");
}

TEST(PeftAdapter, RefusesRanksAboveTheLimitAndValuesThatAreNotFinite) {
  const TempDir dir;
  Bank bank;
  const Result<void> big = bank.read(RandomAdapter{.r = 9}.write(dir, "big", kModel));
  ASSERT_FALSE(big);
  expect_has(big.error().message, "has rank 9; --max-lora-rank is 8");

  SafetensorsWriter writer;
  std::vector<float> a(4 * 16, 1.0F);
  a[7] = std::numeric_limits<float>::infinity();
  const std::string at = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
  writer.add_f32(at + "A.weight", {4, 16}, a);
  writer.add_f32(at + "B.weight", {32, 4}, std::vector<float>(32 * 4));
  dir.write("inf/adapter_model.safetensors", writer.bytes());
  dir.write("inf/adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": 4})");
  const Result<void> inf = bank.read((dir.path() / "inf").string());
  ASSERT_FALSE(inf);
  expect_has(inf.error().message, "has a value that is not finite");
}

// Every cut of a file is refused, and so is a missing one.
TEST(PeftAdapter, RefusesFilesThatAreCutOrMissing) {
  const TempDir dir;
  Bank bank;
  EXPECT_FALSE(bank.read((dir.path() / "none").string()));
  const std::string path = RandomAdapter{.r = 4, .targets = {"q_proj"}}.write(dir, "a", kModel);
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const std::string file = path + "/" + name;
    const std::uintmax_t size = std::filesystem::file_size(file);
    for (const std::uintmax_t keep : {size - 1, size / 2, std::uintmax_t{9}, std::uintmax_t{0}}) {
      std::filesystem::copy(path,
                            dir.path() / "cut",
                            std::filesystem::copy_options::recursive |
                                std::filesystem::copy_options::overwrite_existing);
      std::filesystem::resize_file(dir.path() / "cut" / name, keep);
      const Result<void> read = bank.read((dir.path() / "cut").string());
      ASSERT_FALSE(read) << name << " " << keep;
      EXPECT_EQ(read.error().message.find('\n'), std::string::npos) << read.error().message;
    }
  }
}

TEST(ModulePattern, MatchesAsPeft) {
  const std::string module = "model.layers.10.self_attn.q_proj";
  const auto matches = [&](const std::string& pattern) {
    return value_or_throw(module_matches(pattern, module));
  };
  for (const char* pattern : {"q_proj",
                              "self_attn.q_proj",
                              "self_attn\\.q_proj",
                              ".*q_proj",
                              "model.layers.10.self_attn.q_proj",
                              "layers\\.\\d+\\.self_attn\\.(q|k)_proj",
                              "layers.[0-9]+.*",
                              "^model.*",
                              "(?:[qkv]|o)_proj$",
                              "[^k]_proj",
                              "\\w+",
                              "x?q_pr+oj"}) {
    EXPECT_TRUE(matches(pattern)) << pattern;
  }
  for (const char* pattern :
       {"proj", "q_pro", "v_proj", "layers.1.self_attn.q_proj", "attn.q_proj", "[^q]_proj", ""}) {
    EXPECT_FALSE(matches(pattern)) << pattern;
  }
}

}  // namespace
}  // namespace warprow
