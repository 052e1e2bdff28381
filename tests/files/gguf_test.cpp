// SPDX-License-Identifier: Apache-2.0
#include "files/gguf.h"

#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"

#include <array>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Bytes;
using test::GgufWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Offsets of the header fields in every file of GgufWriter.
constexpr size_t kVersionAt = 4;
constexpr size_t kNumTensorsAt = 8;
constexpr size_t kNumValuesAt = 16;
constexpr size_t kFirstKeyAt = 24;

const std::vector<float> kEight{0, 1, 2, 3, 4, 5, 6, 7};

Result<GgufFile> parse(const Bytes& bytes) { return GgufFile::parse(bytes, "test.gguf"); }

void expect_error(const Bytes& bytes, ErrorCode code, const std::string& part) {
  const Result<GgufFile> file = parse(bytes);
  ASSERT_FALSE(file.has_value()) << part;
  EXPECT_EQ(file.error().code, code) << file.error().message;
  EXPECT_THAT(file.error().message, HasSubstr(part));
  EXPECT_THAT(file.error().message, HasSubstr("'test.gguf'"));
}

GgufWriter small_file() {
  GgufWriter w;
  w.add("general.architecture", "llama").add("u8", uint8_t{200}).add("flag", true);
  w.add_array("names", std::vector<std::string>{"a", "", "ccc"})
      .add_array("ints", std::vector<int16_t>{1, -2});
  w.add_f32("m", {4, 2}, kEight).add_tensor("q", GgmlType::kQ8_0, {32}, Bytes(34));
  return w;
}

TEST(Gguf, ReadsEveryScalarType) {
  GgufWriter w;
  w.add("u8", uint8_t{200})
      .add("i8", int8_t{-100})
      .add("u16", uint16_t{60000})
      .add("i16", int16_t{-30000});
  w.add("u32", uint32_t{4'000'000'000})
      .add("i32", int32_t{-2'000'000'000})
      .add("u64", ~uint64_t{0});
  w.add("i64", std::numeric_limits<int64_t>::min())
      .add("f32", 0.5F)
      .add("f64", 0.25)
      .add("yes", true)
      .add("no", false);
  w.add("text", "h\xc3\xa9").add("empty", "").add("huge", 1e300);
  const Bytes bytes = w.bytes();
  const auto file = parse(bytes);
  ASSERT_TRUE(file) << file.error().message;

  EXPECT_EQ(file->get<uint32_t>("u8"), 200U);
  EXPECT_EQ(file->get<int64_t>("i8"), -100);
  EXPECT_EQ(file->get<int32_t>("u16"), 60000);
  EXPECT_EQ(file->get<int64_t>("i16"), -30000);
  EXPECT_EQ(file->get<uint32_t>("u32"), 4'000'000'000U);
  EXPECT_EQ(file->get<int64_t>("u32"), 4'000'000'000);
  EXPECT_EQ(file->get<int32_t>("i32"), -2'000'000'000);
  EXPECT_EQ(file->get<int64_t>("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(file->get<float>("f32"), 0.5F);
  EXPECT_EQ(file->get<float>("f64"), 0.25F);
  EXPECT_EQ(file->get<float>("u8"), 200.0F);
  EXPECT_EQ(file->get<bool>("yes"), true);
  EXPECT_EQ(file->get<bool>("no"), false);
  EXPECT_EQ(file->get<std::string_view>("text"), "h\xc3\xa9");
  EXPECT_EQ(file->get<std::string_view>("empty"), "");
  // Keys that are absent, have another type, or are out of range.
  EXPECT_EQ(file->get<uint32_t>("absent"), std::nullopt);
  EXPECT_EQ(file->get<uint32_t>("text"), std::nullopt);
  EXPECT_EQ(file->get<uint32_t>("f32"), std::nullopt);
  EXPECT_EQ(file->get<bool>("u8"), std::nullopt);
  EXPECT_EQ(file->get<float>("yes"), std::nullopt);
  EXPECT_EQ(file->get<float>("huge"), std::nullopt);
  EXPECT_EQ(file->get<std::string_view>("u8"), std::nullopt);
  EXPECT_EQ(file->get<int32_t>("u32"), std::nullopt);
  EXPECT_EQ(file->get<uint32_t>("i8"), std::nullopt);
  EXPECT_EQ(file->get<int64_t>("u64"), std::nullopt);
}

TEST(Gguf, ReadsArrays) {
  GgufWriter w;
  w.add_array("strings", std::vector<std::string>{"one", "", "three"});
  w.add_array("ints", std::vector<int32_t>{-1, 0, 7})
      .add_array("bools", std::vector<bool>{true, false});
  w.add_array("floats", std::vector<float>{0.5F, -2.0F}).add_array("none", std::vector<uint8_t>{});
  w.add("scalar", uint32_t{3});
  const Bytes bytes = w.bytes();
  const auto file = parse(bytes);
  ASSERT_TRUE(file) << file.error().message;

  EXPECT_THAT(*file->get<std::vector<std::string_view>>("strings"),
              ElementsAre("one", "", "three"));
  EXPECT_THAT(*file->get<std::vector<int64_t>>("ints"), ElementsAre(-1, 0, 7));
  EXPECT_THAT(*file->get<std::vector<int64_t>>("bools"), ElementsAre(1, 0));
  EXPECT_THAT(*file->get<std::vector<float>>("floats"), ElementsAre(0.5F, -2.0F));
  EXPECT_THAT(*file->get<std::vector<float>>("ints"), ElementsAre(-1.0F, 0.0F, 7.0F));
  EXPECT_THAT(*file->get<std::vector<int64_t>>("none"), ElementsAre());
  EXPECT_FALSE(file->get<std::vector<int64_t>>("floats"));
  EXPECT_FALSE(file->get<std::vector<int64_t>>("strings"));
  EXPECT_FALSE(file->get<std::vector<int64_t>>("scalar"));
  EXPECT_FALSE(file->get<std::vector<std::string_view>>("ints"));
  EXPECT_FALSE(file->get<uint32_t>("ints"));
  EXPECT_THAT(file->keys(), ElementsAre("strings", "ints", "bools", "floats", "none", "scalar"));
}

TEST(Gguf, RequireAndGetOrExplain) {
  GgufWriter w;
  w.add("text", "x").add("big", int64_t{-1}).add_array("list", std::vector<float>{1.5F});
  const Bytes bytes = w.bytes();
  const auto file = parse(bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->require<std::string_view>("text").value(), "x");
  EXPECT_EQ(file->get_or<uint32_t>("absent", 5).value(), 5U);
  EXPECT_EQ(file->require<uint32_t>("absent").error().message,
            "'test.gguf': metadata key 'absent' is missing");
  EXPECT_EQ(
      file->get_or<uint32_t>("text", 5).error().message,
      "'test.gguf': metadata key 'text' of type string is not an unsigned 32-bit integer in range");
  EXPECT_EQ(
      file->require<uint32_t>("big").error().message,
      "'test.gguf': metadata key 'big' of type int64 is not an unsigned 32-bit integer in range");
  EXPECT_EQ(
      file->require<std::vector<int64_t>>("list").error().message,
      "'test.gguf': metadata key 'list' of type array of float32 is not an array of integers");
}

TEST(Gguf, DescribesTensors) {
  const Bytes bytes = small_file().bytes();
  const auto file = parse(bytes);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 2U);
  const GgufTensor* m = file->find_tensor("m");
  ASSERT_NE(m, nullptr);
  EXPECT_EQ(m->type, GgmlType::kF32);
  EXPECT_EQ(m->n_dims, 2);
  EXPECT_THAT(m->ne, ElementsAre(4, 2, 1, 1));
  EXPECT_EQ(m->bytes, 32U);
  EXPECT_EQ(m->offset % 32, 0U);
  std::array<float, 8> values{};
  std::memcpy(values.data(), file->tensor_bytes(*m).data(), sizeof(values));
  EXPECT_THAT(values, ::testing::ElementsAreArray(kEight));
  EXPECT_EQ(file->find_tensor("q")->bytes, 34U);
  EXPECT_EQ(file->find_tensor("absent"), nullptr);
}

TEST(Gguf, OpensAFileAndSurvivesAMove) {
  const test::TempDir dir;
  const Bytes bytes = small_file().bytes();
  auto opened = GgufFile::open(dir.write("a.gguf", bytes));
  ASSERT_TRUE(opened) << opened.error().message;
  const GgufFile file = *std::move(opened);
  EXPECT_EQ(file.get<std::string_view>("general.architecture"), "llama");
  const GgufTensor& tensor = *file.find_tensor("m");
  file.drop_pages(tensor.offset, tensor.bytes);
  EXPECT_EQ(file.tensor_bytes(tensor)[4 + 3], std::byte{0x3f});  // still readable: 1.0f

  const auto absent = GgufFile::open((dir.path() / "b.gguf").string());
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(GgufFile::open(dir.write("empty.gguf", "")).error().code, ErrorCode::kCorrupt);
}

TEST(Gguf, AcceptsVocabularyOnlyFilesAndOtherAlignments) {
  GgufWriter vocab(2);
  vocab.add("a", uint8_t{1});  // no tensor, so no padding follows
  EXPECT_TRUE(parse(vocab.bytes()));
  GgufWriter wide(3, 128);
  wide.add("general.alignment", uint32_t{128}).add_f32("m", {8}, kEight).add_f32("n", {8}, kEight);
  const Bytes bytes = wide.bytes();
  const auto file = parse(bytes);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->find_tensor("n")->offset - file->find_tensor("m")->offset, 128U);
}

TEST(Gguf, EveryTruncationIsAnError) {
  const Bytes whole = small_file().bytes();
  ASSERT_TRUE(parse(whole));
  for (size_t len = 0; len < whole.size(); ++len) {
    // A copy of exactly this size, so that AddressSanitizer detects a read past it.
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(len));
    const auto file = parse(part);
    ASSERT_FALSE(file) << len;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << len;
  }
}

TEST(Gguf, NoMutationOfAByteEscapesTheBounds) {
  const Bytes whole = small_file().bytes();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const unsigned change : {0x01U, 0x80U, 0xffU}) {
      Bytes bytes = whole;
      bytes[at] ^= std::byte(change);
      const auto file = parse(bytes);
      if (!file) {
        continue;
      }
      for (const GgufTensor& tensor : file->tensors()) {
        EXPECT_EQ(file->tensor_bytes(tensor).size(), tensor.bytes);
      }
      for (const std::string_view key : file->keys()) {
        (void)file->get<std::vector<std::string_view>>(key);
        (void)file->get<std::vector<float>>(key);
        (void)file->get<float>(key);
      }
    }
  }
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  Bytes bytes = small_file().bytes();
  expect_error(Bytes(100), ErrorCode::kCorrupt, "not a GGUF file");
  test::patch(bytes, kVersionAt, uint32_t{1});
  expect_error(bytes, ErrorCode::kUnsupported, "version 1");
  test::patch(bytes, kVersionAt, uint32_t{0x03000000});
  expect_error(bytes, ErrorCode::kUnsupported, "big-endian");
}

TEST(Gguf, LyingCountsAllocateNothing) {
  for (const uint64_t lie :
       {uint64_t{1} << 20, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} / 2 + 1}) {
    Bytes bytes = small_file().bytes();
    test::patch(bytes, kNumTensorsAt, lie);
    expect_error(bytes, ErrorCode::kCorrupt, "tensors runs past");
    bytes = small_file().bytes();
    test::patch(bytes, kNumValuesAt, lie);
    expect_error(bytes, ErrorCode::kCorrupt, "metadata values runs past");
    bytes = small_file().bytes();
    test::patch(bytes, kFirstKeyAt, lie);
    expect_error(bytes, ErrorCode::kCorrupt, "metadata key 1 of 5 runs past");

    bytes = GgufWriter().add_array("k", std::vector<uint32_t>{1, 2}).bytes();
    test::patch(bytes, kFirstKeyAt + 8 + 1 + 4 + 4, lie);
    expect_error(bytes, ErrorCode::kCorrupt, "metadata key 'k', an array of");
    bytes = GgufWriter().add_array("k", std::vector<std::string>{"a"}).bytes();
    test::patch(bytes, kFirstKeyAt + 8 + 1 + 4 + 4, lie);
    expect_error(bytes, ErrorCode::kCorrupt, "metadata key 'k', an array of");
  }
}

TEST(Gguf, RefusesBadMetadata) {
  expect_error(
      GgufWriter().add("k", true).add("k", false).bytes(), ErrorCode::kCorrupt, "'k' occurs twice");
  Bytes bytes = GgufWriter().add("k", true).bytes();
  bytes.back() = std::byte{2};
  expect_error(bytes, ErrorCode::kCorrupt, "neither 0 nor 1");
  bytes = GgufWriter().add("k", uint32_t{1}).bytes();
  test::patch(bytes, kFirstKeyAt + 8 + 1, uint32_t{13});
  expect_error(bytes, ErrorCode::kCorrupt, "unknown type 13");
  bytes = GgufWriter().add_array("k", std::vector<uint32_t>{1}).bytes();
  test::patch(bytes, kFirstKeyAt + 8 + 1 + 4, uint32_t{99});
  expect_error(bytes, ErrorCode::kCorrupt, "unknown type 99");
  test::patch(bytes, kFirstKeyAt + 8 + 1 + 4, GgufValueType::kArray);
  expect_error(bytes, ErrorCode::kUnsupported, "array of arrays");
  expect_error(GgufWriter().add("general.alignment", uint32_t{24}).bytes(),
               ErrorCode::kCorrupt,
               "power of two");
  expect_error(GgufWriter().add("general.alignment", uint32_t{0}).bytes(),
               ErrorCode::kCorrupt,
               "power of two");
  expect_error(
      GgufWriter().add("general.alignment", "x").bytes(), ErrorCode::kCorrupt, "general.alignment");
  const std::string control = "a\nb" + std::string(200, 'x');
  expect_error(
      GgufWriter().add(control, true).add(control, true).bytes(), ErrorCode::kCorrupt, "'a?bxx");
}

TEST(Gguf, RefusesBadTensors) {
  const auto one = [](GgmlType type, const std::vector<uint64_t>& ne, size_t bytes) {
    return GgufWriter().add_tensor("t", type, ne, Bytes(bytes)).bytes();
  };
  constexpr uint64_t kHuge = uint64_t{1} << 40;
  expect_error(one(GgmlType{4}, {32}, 64), ErrorCode::kUnsupported, "unknown type 4");
  expect_error(one(GgmlType::kQ4_0, {33}, 64), ErrorCode::kCorrupt, "not a multiple of 32");
  expect_error(one(GgmlType::kQ6_K, {32, 8}, 210), ErrorCode::kCorrupt, "not a multiple of 256");
  expect_error(one(GgmlType::kF32, {0}, 4), ErrorCode::kCorrupt, "impossible dimension 0");
  expect_error(one(GgmlType::kF32, {kHuge, kHuge}, 4), ErrorCode::kCorrupt, "impossible dimension");
  expect_error(one(GgmlType::kF32, {~uint64_t{0}}, 4), ErrorCode::kCorrupt, "impossible dimension");
  expect_error(one(GgmlType::kF32, {kHuge}, 4), ErrorCode::kCorrupt, "ends early");
  expect_error(one(GgmlType::kF32, {2}, 4), ErrorCode::kCorrupt, "ends early");
  expect_error(one(GgmlType::kF32, {1, 1, 1, 1, 1}, 4), ErrorCode::kCorrupt, "5 dimensions");
  expect_error(GgufWriter().add_f32("t", {8}, kEight).add_f32("t", {8}, kEight).bytes(),
               ErrorCode::kCorrupt,
               "tensor 't' occurs twice");
  EXPECT_TRUE(parse(one(GgmlType::kF32, {}, 4)));

  // The offset is the last field of the entry. Before it are 24 bytes of header, the name, the number of dimensions,
  // one dimension and the type.
  constexpr size_t kOffsetAt = 24 + (8 + 1) + 4 + 8 + 4;
  Bytes bytes = one(GgmlType::kF32, {8}, 96);
  test::patch(bytes, kOffsetAt, uint64_t{64});
  EXPECT_TRUE(parse(bytes));
  test::patch(bytes, kOffsetAt, uint64_t{96});
  expect_error(bytes, ErrorCode::kCorrupt, "ends early");
  test::patch(bytes, kOffsetAt, ~uint64_t{0} - 31);
  expect_error(bytes, ErrorCode::kCorrupt, "ends early");
  test::patch(bytes, kOffsetAt, uint64_t{4});
  expect_error(bytes, ErrorCode::kCorrupt, "not a multiple of 32");

  bytes = GgufWriter().add_f32("a", {16}, std::vector<float>(16)).add_f32("b", {8}, kEight).bytes();
  constexpr size_t kEntry = (8 + 1) + 4 + 8 + 4 + 8;
  test::patch(bytes, kOffsetAt + kEntry, uint64_t{32});
  expect_error(bytes, ErrorCode::kCorrupt, "'a' and 'b' overlap");
}

}  // namespace
}  // namespace warprow
