// SPDX-License-Identifier: Apache-2.0
#include "weights/checkpoint.h"

#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"
#include "weights/dequantize.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::Bytes;
using test::GgufWriter;
using test::SafetensorsWriter;
using ::testing::HasSubstr;

std::vector<float> ramp(size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

Result<Checkpoint> open_gguf(const std::string& path) {
  return Checkpoint::open(ModelFiles{ModelFiles::Kind::kGguf, path, "test"});
}
Result<Checkpoint> open_dir(const test::TempDir& dir) {
  return Checkpoint::open(ModelFiles{ModelFiles::Kind::kHfDir, dir.path().string(), "test"});
}

std::vector<float> values_of(const TensorSource& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.cols));
  for (int64_t row = 0; row < tensor.rows; ++row) {
    dequantize_row(tensor.type,
                   tensor.data + static_cast<size_t>(row) * tensor.row_bytes,
                   values.data() + row * tensor.cols,
                   tensor.cols);
  }
  return values;
}

TEST(Checkpoint, ReadsGguf) {
  const test::TempDir dir;
  GgufWriter w;
  w.add("general.architecture", "llama")
      .add_f32("norm", {3}, ramp(3))
      .add_f16("m", {4, 2}, ramp(8));
  w.add_q8_0("q", {64, 2, 3}, std::vector<float>(384, 1.0F));
  auto opened = open_gguf(dir.write("m.gguf", w.bytes()));
  ASSERT_TRUE(opened) << opened.error().message;
  const Checkpoint checkpoint = *std::move(opened);

  const TensorSource* norm = checkpoint.find("norm");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->rows, 1);
  EXPECT_EQ(norm->cols, 3);
  EXPECT_EQ(norm->shape, (std::vector<int64_t>{3}));
  const TensorSource* m = checkpoint.require("m").value();
  EXPECT_EQ(m->type, TensorType::kF16);
  EXPECT_EQ(m->rows, 2);
  EXPECT_EQ(m->cols, 4);
  EXPECT_EQ(m->row_bytes, 8U);
  EXPECT_EQ(values_of(*m), ramp(8));
  const TensorSource* q = checkpoint.find("q");
  EXPECT_EQ(q->shape, (std::vector<int64_t>{3, 2, 64}));
  EXPECT_EQ(q->rows, 6);
  EXPECT_EQ(q->cols, 64);
  EXPECT_EQ(q->bytes, 6U * 68U);
  EXPECT_EQ(checkpoint.total_bytes(), 12U + 16U + 6U * 68U);
  EXPECT_EQ(checkpoint.tensors().size(), 3U);
  EXPECT_EQ(checkpoint.find("absent"), nullptr);
  EXPECT_THAT(checkpoint.require("absent").error().message,
              HasSubstr("m.gguf' has no tensor 'absent'"));
  EXPECT_EQ(checkpoint.gguf()->get<std::string_view>("general.architecture"), "llama");
  EXPECT_EQ(checkpoint.config_json(), nullptr);

  checkpoint.drop_pages(*m);
  EXPECT_EQ(values_of(*m), ramp(8));
}

TEST(Checkpoint, ReadsSafetensors) {
  const test::TempDir dir;
  dir.write("config.json", R"({"model_type": "llama"})");
  dir.write("a.safetensors",
            SafetensorsWriter().add("m", "F16", {2, 4}, test::f16_bytes(ramp(8))).bytes());
  dir.write("b.safetensors",
            SafetensorsWriter()
                .add_f32("norm", {3}, ramp(3))
                .add("scalar", "BF16", {}, Bytes(2))
                .add("ids", "I64", {2}, Bytes(16))
                .bytes());
  dir.write("model.safetensors.index.json",
            R"({"weight_map":{"m":"a.safetensors","norm":"b.safetensors","scalar":"b.safetensors",
                "ids":"b.safetensors"}})");
  auto opened = open_dir(dir);
  ASSERT_TRUE(opened) << opened.error().message;
  const Checkpoint checkpoint = *std::move(opened);
  const TensorSource* m = checkpoint.find("m");
  ASSERT_NE(m, nullptr);
  EXPECT_EQ(m->rows, 2);
  EXPECT_EQ(m->cols, 4);
  EXPECT_EQ(values_of(*m), ramp(8));
  const TensorSource* norm = checkpoint.find("norm");
  EXPECT_EQ(norm->rows, 1);
  EXPECT_EQ(norm->cols, 3);
  EXPECT_EQ(checkpoint.files()[static_cast<size_t>(norm->file)],
            (dir.path() / "b.safetensors").string());
  EXPECT_EQ(checkpoint.find("scalar")->rows * checkpoint.find("scalar")->cols, 1);
  EXPECT_EQ(checkpoint.find("ids")->type, TensorType::kI64);
  EXPECT_EQ(checkpoint.total_bytes(), 16U + 12U + 2U) << "integers are not counted";
  EXPECT_EQ((*checkpoint.config_json())["model_type"], "llama");
  EXPECT_EQ(checkpoint.gguf(), nullptr);
  checkpoint.drop_pages(*norm);
  EXPECT_EQ(values_of(*norm), ramp(3));
}

// Packed weights, their zero points and 8-bit scales: tensors with bytes and a shape but without values of their own.
TEST(Checkpoint, KeepsIntegersAndSmallFloatsAsBytes) {
  const std::vector<std::pair<std::string, size_t>> types{{"BOOL", 1},
                                                          {"U8", 1},
                                                          {"I8", 1},
                                                          {"U16", 2},
                                                          {"I16", 2},
                                                          {"U32", 4},
                                                          {"I32", 4},
                                                          {"U64", 8},
                                                          {"I64", 8},
                                                          {"F8_E5M2", 1},
                                                          {"F8_E4M3", 1},
                                                          {"F8_E8M0", 1}};
  const test::TempDir dir;
  SafetensorsWriter writer;
  std::byte first{1};
  for (const auto& [name, width] : types) {
    writer.add("a." + name, name, {2, 1, 3}, Bytes(6 * width, first));
    first = static_cast<std::byte>(static_cast<int>(first) + 1);
  }
  writer.add_f32("norm", {3}, ramp(3));
  dir.write("config.json", "{}");
  dir.write("model.safetensors", writer.bytes());
  const Checkpoint checkpoint = value_or_throw(open_dir(dir));
  EXPECT_EQ(checkpoint.total_bytes(), 12U);
  first = std::byte{1};
  for (const auto& [name, width] : types) {
    const TensorSource* tensor = checkpoint.find("a." + name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor_type_name(tensor->type), name);
    EXPECT_FALSE(has_values(tensor->type)) << name;
    EXPECT_EQ(tensor->shape, (std::vector<int64_t>{2, 1, 3})) << name;
    EXPECT_EQ(tensor->rows, 2) << name;
    EXPECT_EQ(tensor->cols, 3) << name;
    EXPECT_EQ(tensor->row_bytes, 3 * width) << name;
    EXPECT_EQ(Bytes(tensor->data, tensor->data + tensor->bytes), Bytes(6 * width, first)) << name;
    first = static_cast<std::byte>(static_cast<int>(first) + 1);
    const auto values = checkpoint.require_values("a." + name);
    ASSERT_FALSE(values) << name;
    EXPECT_EQ(values.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(values.error().message, HasSubstr("tensor 'a." + name + "' has the type " + name));
  }
  EXPECT_TRUE(checkpoint.require_values("norm"));
}

TEST(Checkpoint, PartsOfAGgufFile) {
  const test::TempDir dir;
  GgufWriter first;
  first.add("split.no", uint16_t{0}).add("split.count", uint16_t{2}).add("general.name", "n");
  first.add_f32("a", {2}, std::vector<float>{1.0F, 2.0F});
  GgufWriter second;
  second.add("split.no", uint16_t{1}).add("split.count", uint16_t{2});
  second.add_f32("b", {3}, std::vector<float>{3.0F, 4.0F, 5.0F});
  dir.write("m-00002-of-00002.gguf", second.bytes());
  const Checkpoint checkpoint =
      value_or_throw(open_gguf(dir.write("m-00001-of-00002.gguf", first.bytes())));
  ASSERT_EQ(checkpoint.files().size(), 2U);
  EXPECT_TRUE(checkpoint.gguf()->has("general.name"));
  const TensorSource* b = checkpoint.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->file, 1);
  EXPECT_EQ(values_of(*b), (std::vector<float>{3.0F, 4.0F, 5.0F}));
  EXPECT_EQ(checkpoint.find("a")->file, 0);
  EXPECT_EQ(checkpoint.total_bytes(), 20U);
  checkpoint.drop_pages(*b);
  EXPECT_EQ(values_of(*b).size(), 3U);
}

TEST(Checkpoint, RefusesWhatItCannotComputeWith) {
  const test::TempDir dir;
  auto refused = open_gguf(dir.write(
      "m.gguf",
      GgufWriter().add_tensor("blk.0.ffn_up.weight", GgmlType::kTQ1_0, {256}, Bytes(54)).bytes()));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message,
              HasSubstr("tensor 'blk.0.ffn_up.weight' has the type TQ1_0"));

  dir.write("config.json", R"({"quantization_config": {"quant_method": "bitsandbytes"}})");
  dir.write("model.safetensors", SafetensorsWriter().add("w", "F8_E4M3", {1}, Bytes(1)).bytes());
  refused = open_dir(dir);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message,
              HasSubstr("quant_method 'bitsandbytes' is not supported (awq, "));
  dir.write("config.json", "{}");
  dir.write("model.safetensors", SafetensorsWriter().add("w", "F64", {1}, Bytes(8)).bytes());
  refused = open_dir(dir);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("tensor 'w' has the type F64"));
  dir.write("config.json", "[]");
  EXPECT_EQ(open_dir(dir).error().code, ErrorCode::kCorrupt);
}

// Bytes are weights only in models that say so.
TEST(Checkpoint, Mxfp4IsDeclaredByTheConfig) {
  const test::TempDir dir;
  dir.write("model.safetensors",
            SafetensorsWriter()
                .add("w_blocks", "U8", {2, 1, 16}, Bytes(32))
                .add("w_scales", "U8", {2, 1}, Bytes(2))
                .add("norm", "BF16", {4}, Bytes(8))
                .bytes());
  dir.write("config.json", "{}");
  const auto plain = open_dir(dir);
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->has_mxfp4_experts());
  EXPECT_EQ(plain->total_bytes(), 8U);
  dir.write("config.json", R"({"quantization_config": {"quant_method": "mxfp4"}})");
  const auto mxfp4 = open_dir(dir);
  ASSERT_TRUE(mxfp4);
  EXPECT_TRUE(mxfp4->has_mxfp4_experts());
  EXPECT_EQ(mxfp4->total_bytes(), 42U);
}

TEST(Checkpoint, OpeningReadsOnlyTheHeader) {
  constexpr size_t kTensorBytes = size_t{64} << 20;
  const test::TempDir dir;
  const Bytes header =
      GgufWriter().add_tensor("big", GgmlType::kF32, {kTensorBytes / 4}, {}).bytes();
  const std::string path = dir.write("big.gguf", header);
  std::filesystem::resize_file(path, header.size() + kTensorBytes);
  const auto checkpoint = open_gguf(path);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;

  // The file is sparse. A page enters memory only by a read (or the kernel's read-ahead, up to a few MB).
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  auto* base = const_cast<std::byte*>(checkpoint->gguf()->bytes().data());
  std::vector<unsigned char> resident((header.size() + kTensorBytes + page - 1) / page);
  ASSERT_EQ(::mincore(base, resident.size() * page, resident.data()), 0);
  const auto count = std::count_if(
      resident.begin(), resident.end(), [](unsigned char r) { return (r & 1U) != 0; });
  EXPECT_LT(static_cast<size_t>(count) * page, kTensorBytes / 4);
}

}  // namespace
}  // namespace warprow
