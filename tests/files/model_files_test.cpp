// SPDX-License-Identifier: Apache-2.0
#include "files/model_files.h"

#include "tests/support/temp_dir.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;
using Kind = ModelFiles::Kind;

class ModelFilesTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string at(const std::string& name) const {
    return (dir_.path() / name).string();
  }
  [[nodiscard]] Result<ModelFiles> resolve(const std::string& name) const {
    return resolve_model(name, CachePaths{at("cache"), at("hub")});
  }
  void expect_model(const std::string& name,
                    Kind kind,
                    const std::string& path,
                    const std::string& display) const {
    const auto model = resolve(name);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(model->kind, kind);
    EXPECT_EQ(model->path, path);
    EXPECT_EQ(model->display_name, display);
  }
  void expect_error(const std::string& name, ErrorCode code, const std::string& part) const {
    const auto model = resolve(name);
    ASSERT_FALSE(model.has_value()) << part;
    EXPECT_EQ(model.error().code, code) << model.error().message;
    EXPECT_THAT(model.error().message, HasSubstr(part));
    EXPECT_EQ(model.error().message.find('\n'), std::string::npos);
  }

  test::TempDir dir_;
};

TEST_F(ModelFilesTest, AConfigIsEnoughWhereNoWeightsAreRead) {
  std::filesystem::create_directory(at("bare"));
  dir_.write("bare/config.json", "{}");
  expect_error(at("bare"), ErrorCode::kNotFound, "holds no model");
  const auto model =
      resolve_model(at("bare"), CachePaths{at("cache"), at("hub")}, WeightFiles::kNotRead);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->kind, Kind::kHfDir);
  EXPECT_EQ(model->display_name, "bare");
}

TEST_F(ModelFilesTest, Files) {
  const std::string named = dir_.write("My-Model.Q4_1.gguf", "damaged");
  expect_model(named, Kind::kGguf, named, "My-Model.Q4_1");
  const std::string blob = dir_.write("blob", "GGUF....");
  expect_model(blob, Kind::kGguf, blob, "blob");
  expect_error(dir_.write("a.txt", "text"), ErrorCode::kUnsupported, "is not a GGUF file");
  expect_error(dir_.write("m.safetensors", "x"), ErrorCode::kInvalidArgument, "give the directory");
  expect_error(at("absent.gguf"), ErrorCode::kNotFound, "no file or directory");
  expect_error(at("absent"), ErrorCode::kNotFound, "no file or directory");
  expect_error("./absent", ErrorCode::kNotFound, "no file or directory");
  expect_error("absent.gguf", ErrorCode::kNotFound, "no file or directory");
  expect_error("no such\nmodel", ErrorCode::kNotFound, "'no such?model'");
  expect_error("", ErrorCode::kInvalidArgument, "no model");
}

TEST_F(ModelFilesTest, Directories) {
  std::filesystem::create_directories(at("m"));
  expect_error(at("m"), ErrorCode::kNotFound, "neither model.safetensors");
  dir_.write("m/model.safetensors.index.json", "{}");
  expect_error(at("m"), ErrorCode::kNotFound, "holds no config.json");
  dir_.write("m/config.json", "{}");
  expect_model(at("m"), Kind::kHfDir, at("m"), "m");
  expect_model(at("m") + "/", Kind::kHfDir, at("m") + "/", "m");

  const std::string gguf = dir_.write("g/one.gguf", "");
  expect_model(at("g"), Kind::kGguf, gguf, "g");
  dir_.write("g/two.gguf", "");
  expect_error(at("g"), ErrorCode::kInvalidArgument, "2 GGUF files (one.gguf, ...)");
  const std::string first = dir_.write("parts/m-00001-of-00002.gguf", "");
  dir_.write("parts/m-00002-of-00002.gguf", "");
  expect_model(at("parts"), Kind::kGguf, first, "parts");
  expect_model(first, Kind::kGguf, first, "m");
}

TEST_F(ModelFilesTest, TheDefaultModel) {
  expect_error("smollm2", ErrorCode::kNotFound, "nor in the Hugging Face cache");
  const std::string downloaded = dir_.write(
      "hub/models--QuantFactory--SmolLM2-135M-Instruct-GGUF/snapshots/"
      "ab810cf68114990406fdf996510dd3d3c6adbdf5/SmolLM2-135M-Instruct.Q4_1.gguf",
      "cut short");
  expect_error("smollm2", ErrorCode::kCorrupt, "has 9 bytes instead of 98362432");
  std::filesystem::resize_file(downloaded, 98'362'432);  // a sparse file
  expect_model("smollm2", Kind::kGguf, downloaded, "smollm2");
  // The file that ./dev has placed takes precedence.
  const std::string placed = dir_.write("cache/SmolLM2-135M-Instruct.Q4_1.gguf", "cut short");
  expect_error("smollm2", ErrorCode::kCorrupt, "has 9 bytes instead of 98362432");
  std::filesystem::resize_file(placed, 98'362'432);
  expect_model("smollm2", Kind::kGguf, placed, "smollm2");
}

TEST_F(ModelFilesTest, HuggingFaceCache) {
  expect_error(
      "org/model", ErrorCode::kNotFound, "nor in the Hugging Face cache '" + at("hub") + "'");
  const std::string repo = "hub/models--org--model/";
  for (const std::string file : {"config.json", "model.safetensors"}) {
    dir_.write(repo + "snapshots/abc123/" + file, "{}");
  }
  expect_error("org/model", ErrorCode::kNotFound, "no revision 'main'");
  dir_.write(repo + "refs/main", "abc123\n");
  const std::string snapshot = at(repo + "snapshots/abc123");
  expect_model("org/model", Kind::kHfDir, snapshot, "org/model");
  expect_model("org/model@main", Kind::kHfDir, snapshot, "org/model");
  expect_model("org/model@abc123", Kind::kHfDir, snapshot, "org/model");
  dir_.write(repo + "refs/pr/1", "abc123");
  expect_model("org/model@pr/1", Kind::kHfDir, snapshot, "org/model");
  expect_error("org/model@pr", ErrorCode::kNotFound, "no revision 'pr'");
  expect_error("org/model@v2", ErrorCode::kNotFound, "no revision 'v2'");
  expect_error("org/model@../..", ErrorCode::kNotFound, "no file or directory");
  expect_error("org/../model", ErrorCode::kNotFound, "no file or directory");
  dir_.write(repo + "refs/evil", "../../../cache");
  expect_error("org/model@evil", ErrorCode::kNotFound, "no revision");

  const std::string gguf = dir_.write("hub/models--org--quant/snapshots/1/x.gguf", "");
  dir_.write("hub/models--org--quant/refs/main", "1");
  expect_model("org/quant", Kind::kGguf, gguf, "org/quant");
  dir_.write(repo + "refs/empty", "");
  expect_error("org/model@empty", ErrorCode::kNotFound, "no revision");
}

TEST_F(ModelFilesTest, AQuantisationOfSeveral) {
  const std::string repo = "hub/models--org--quants/";
  dir_.write(repo + "refs/main", "1");
  const std::string q4 = dir_.write(repo + "snapshots/1/m-Q4_K_M.gguf", "");
  const std::string q8 = dir_.write(repo + "snapshots/1/m.q8_0.gguf", "");
  expect_error("org/quants", ErrorCode::kInvalidArgument, "holds 2 GGUF files");
  expect_model("org/quants:Q4_K_M", Kind::kGguf, q4, "org/quants:Q4_K_M");
  expect_model("org/quants@main:Q8_0", Kind::kGguf, q8, "org/quants:Q8_0");
  expect_error("org/quants:Q4_K", ErrorCode::kNotFound, "holds 0 GGUF files of quantisation Q4_K");
  expect_error("org/quants:", ErrorCode::kNotFound, "no file or directory");
  expect_error("org/quants:a/b", ErrorCode::kNotFound, "no file or directory");
}

}  // namespace
}  // namespace warprow
