// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors.h"

#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Bytes;
using test::safetensors_bytes;
using test::SafetensorsWriter;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<float> kSix{0, 1, 2, 3, 4, 5};

Result<SafetensorsFile> parse_safetensors(const Bytes& bytes) {
  return SafetensorsFile::parse(bytes, "test.safetensors");
}

void expect_safetensors_error(const Bytes& bytes,
                              const std::string& part,
                              ErrorCode code = ErrorCode::kCorrupt) {
  const auto file = parse_safetensors(bytes);
  ASSERT_FALSE(file.has_value()) << part;
  EXPECT_EQ(file.error().code, code) << file.error().message;
  EXPECT_THAT(file.error().message, HasSubstr(part));
  EXPECT_THAT(file.error().message, HasSubstr("'test.safetensors"));
}

// A file with one tensor "t" with this header entry and `data_bytes` bytes of data.
void expect_entry_error(const std::string& entry, size_t data_bytes, const std::string& part) {
  expect_safetensors_error(safetensors_bytes("{\"t\":" + entry + "}", Bytes(data_bytes)), part);
}

Bytes small_safetensors() {
  SafetensorsWriter w;
  w.add_f32("z", {2, 3}, kSix).add("a", "BF16", {2}, Bytes(4)).add("none", "I64", {0, 4}, {});
  w.header()["__metadata__"] = {{"format", "pt"}};
  return w.bytes();
}

TEST(Safetensors, DescribesTensors) {
  const Bytes bytes = small_safetensors();
  const auto file = parse_safetensors(bytes);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3U);
  const SafetensorsTensor* z = file->find("z");
  ASSERT_NE(z, nullptr);
  EXPECT_EQ(z->dtype, SafetensorsDtype::kF32);
  EXPECT_THAT(z->shape, ElementsAre(2, 3));
  std::array<float, 6> values{};
  std::memcpy(values.data(), file->tensor_bytes(*z).data(), sizeof(values));
  EXPECT_THAT(values, ::testing::ElementsAreArray(kSix));
  EXPECT_EQ(file->find("a")->dtype, SafetensorsDtype::kBF16);
  EXPECT_EQ(file->find("none")->bytes, 0U);
  EXPECT_EQ(file->find("absent"), nullptr);
  EXPECT_EQ(file->find("__metadata__"), nullptr);
}

TEST(Safetensors, OpensAFile) {
  const test::TempDir dir;
  auto opened = SafetensorsFile::open(dir.write("m.safetensors", small_safetensors()));
  ASSERT_TRUE(opened) << opened.error().message;
  const SafetensorsFile file = *std::move(opened);
  const SafetensorsTensor& z = *file.find("z");
  file.drop_pages(z.offset, z.bytes);
  EXPECT_EQ(file.tensor_bytes(z)[7], std::byte{0x3f});
  EXPECT_EQ(SafetensorsFile::open((dir.path() / "absent").string()).error().code,
            ErrorCode::kNotFound);
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const Bytes whole = small_safetensors();
  for (size_t len = 0; len < whole.size(); ++len) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(len));
    ASSERT_FALSE(parse_safetensors(part)) << len;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  expect_safetensors_error(longer, "1 bytes follow the last tensor");
}

TEST(Safetensors, NoMutationOfAByteEscapesTheBounds) {
  const Bytes whole = small_safetensors();
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const unsigned change : {0x01U, 0x08U, 0x80U}) {
      Bytes bytes = whole;
      bytes[at] ^= std::byte(change);
      if (const auto file = parse_safetensors(bytes)) {
        for (const SafetensorsTensor& tensor : file->tensors()) {
          EXPECT_EQ(file->tensor_bytes(tensor).size(), tensor.bytes);
        }
      }
    }
  }
}

TEST(Safetensors, RefusesBadHeaders) {
  expect_safetensors_error({}, "not a safetensors file");
  expect_safetensors_error(safetensors_bytes("", {}), "not a JSON object");
  expect_safetensors_error(safetensors_bytes("[1]", {}), "not a JSON object");
  expect_safetensors_error(safetensors_bytes("{", {}), "ends early");
  Bytes bytes = small_safetensors();
  test::patch(bytes, 0, static_cast<uint64_t>(bytes.size() - 7));
  expect_safetensors_error(bytes, "runs past");
  for (const uint64_t lie : {uint64_t{100'000'001}, uint64_t{1} << 40, ~uint64_t{0}}) {
    test::patch(bytes, 0, lie);
    expect_safetensors_error(bytes, "the limit is");
  }
  std::string bomb = "{\"t\":";
  bomb.append(100'000, '[').append(100'000, ']').append("}");
  expect_safetensors_error(safetensors_bytes(bomb, {}), "deeper");
}

TEST(Safetensors, RefusesBadEntries) {
  expect_entry_error("1", 4, "lacks a dtype");
  expect_entry_error(R"({"dtype":"F32","shape":[1]})", 4, "lacks a dtype");
  expect_entry_error(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})", 4, "lacks a dtype");
  expect_safetensors_error(
      safetensors_bytes(R"({"t":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}})", Bytes(4)),
      "unknown dtype 'Q9'",
      ErrorCode::kUnsupported);
  expect_entry_error(R"({"dtype":"F32","shape":1,"data_offsets":[0,4]})", 4, "its shape");
  expect_entry_error(
      R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4, "impossible dimension '-1'");
  expect_entry_error(
      R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})", 4, "impossible dimension");
  expect_entry_error(
      R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0, "impossible");
  expect_entry_error(
      R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", 0, "impossible");
  expect_entry_error(
      R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4]})", 4, "impossible");
  expect_entry_error(
      R"({"dtype":"F32","shape":[1],"data_offsets":[0]})", 4, "data_offsets are not two");
  expect_entry_error(
      R"({"dtype":"F32","shape":[1],"data_offsets":[-4,0]})", 4, "data_offsets are not two");
  expect_entry_error(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4, "run backwards");
  expect_entry_error(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 4, "ends early");
  expect_entry_error(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4, "need 8");
  expect_entry_error(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})", 1, "need 1");
  expect_entry_error(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 8, "after the end");
}

TEST(Safetensors, RefusesOverlapsHolesAndRepeatedNames) {
  SafetensorsWriter w;
  w.add_f32("a", {2}, std::vector<float>(2)).add_f32("b", {2}, std::vector<float>(2));
  w.header()["b"]["data_offsets"] = {4, 12};
  expect_safetensors_error(w.bytes(),
                           "tensor 'b' starts at 4, before the end of the one before it, 8");
  w.header()["a"]["data_offsets"] = {0, 8};
  w.header()["b"]["data_offsets"] = {0, 8};
  expect_safetensors_error(w.bytes(), "before the end");
  expect_safetensors_error(
      safetensors_bytes(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                        Bytes(1)),
      "'t' occurs twice");
}

TEST(Safetensors, KnowsItsDtypes) {
  EXPECT_EQ(safetensors_dtype_from_name("F8_E4M3"), SafetensorsDtype::kF8E4M3);
  EXPECT_EQ(safetensors_dtype_from_name("f32"), std::nullopt);
  EXPECT_EQ(safetensors_dtype_traits(SafetensorsDtype::kBF16).name, "BF16");
  EXPECT_EQ(safetensors_dtype_traits(SafetensorsDtype::kBF16).bits, 16);
}

}  // namespace
}  // namespace warprow
