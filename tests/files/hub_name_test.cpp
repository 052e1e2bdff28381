// SPDX-License-Identifier: Apache-2.0
#include "files/hub_name.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<HubFile> files_named(const std::vector<std::string>& names) {
  std::vector<HubFile> out;
  out.reserve(names.size());
  for (const std::string& name : names) {
    out.push_back({name, 1, ""});
  }
  return out;
}

Result<std::vector<std::string>> choose(const std::vector<std::string>& names,
                                        const std::string& model,
                                        WeightFiles weights = WeightFiles::kRequired) {
  return choose_hub_files(files_named(names), *parse_hub_name(model), weights)
      .map([](const std::vector<HubFile>& files) {
        std::vector<std::string> out;
        out.reserve(files.size());
        for (const HubFile& file : files) {
          out.push_back(file.name);
        }
        return out;
      });
}

TEST(HubName, Parts) {
  const auto parts = [](const char* text) {
    const std::optional<HubName> name = parse_hub_name(text);
    return name ? name->repo + "|" + name->revision + "|" + name->quant : "none";
  };
  EXPECT_EQ(parts("org/name"), "org/name|main|");
  EXPECT_EQ(parts("gpt2"), "gpt2|main|");
  EXPECT_EQ(parts("org/name@refs/pr/1"), "org/name|refs/pr/1|");
  EXPECT_EQ(parts("org/name:Q4_K_M"), "org/name|main|Q4_K_M");
  EXPECT_EQ(parts("org/name@v1.0:Q8_0"), "org/name|v1.0|Q8_0");
  for (const char* text : {"",
                           "a/b/c",
                           "/a",
                           "a/",
                           "./a",
                           "../a",
                           "a/..",
                           "a b",
                           "a@",
                           "a@../b",
                           "a@/b",
                           "a:",
                           "a:b/c",
                           "http://a/b"}) {
    EXPECT_EQ(parts(text), "none") << text;
  }
}

TEST(HubName, QuantsAreWholeWords) {
  EXPECT_TRUE(has_quant("m-Q4_K_M.gguf", "Q4_K_M"));
  EXPECT_TRUE(has_quant("m.q4_k_m.gguf", "Q4_K_M"));
  EXPECT_TRUE(has_quant("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"));
  EXPECT_TRUE(has_quant("m-Q4_K_M-00001-of-00002.gguf", "Q4_K_M"));
  EXPECT_FALSE(has_quant("m-Q4_K_M.gguf", "Q4_K"));
  EXPECT_FALSE(has_quant("m-IQ4_K.gguf", "Q4_K"));
  EXPECT_FALSE(has_quant("Q4_K", "Q4_K"));
}

TEST(ChooseHubFiles, SafetensorsWithTheirTexts) {
  EXPECT_THAT(
      *choose(
          {"README.md", "model.safetensors", "pytorch_model.bin", "tokenizer.json", "config.json"},
          "o/m"),
      ElementsAre("config.json", "tokenizer.json", "model.safetensors"));
  EXPECT_THAT(
      *choose({"config.json", "tokenizer.json", "tokenizer.model", "model.safetensors"}, "o/m"),
      ElementsAre("config.json", "tokenizer.json", "model.safetensors"));
  EXPECT_THAT(
      *choose({"config.json", "added_tokens.json", "tokenizer.model", "model.safetensors"}, "o/m"),
      ElementsAre("config.json", "tokenizer.model", "added_tokens.json", "model.safetensors"));
  EXPECT_THAT(*choose({"config.json",
                       "consolidated.safetensors",
                       "model-00002-of-00002.safetensors",
                       "model-00001-of-00002.safetensors",
                       "model.safetensors.index.json"},
                      "o/m"),
              ElementsAre("config.json",
                          "model-00002-of-00002.safetensors",
                          "model-00001-of-00002.safetensors",
                          "model.safetensors.index.json"));
  EXPECT_THAT(*choose({"config.json", "model.safetensors"}, "o/m", WeightFiles::kNotRead),
              ElementsAre("config.json"));
}

TEST(ChooseHubFiles, OneGgufFile) {
  EXPECT_THAT(*choose({"x.gguf", "README.md"}, "o/m"), ElementsAre("x.gguf"));
  const std::vector<std::string> several = {
      "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf", "config.json"};
  EXPECT_THAT(*choose(several, "o/m"), ElementsAre("m-Q4_K_M.gguf"));
  EXPECT_THAT(*choose(several, "o/m:q8_0"), ElementsAre("m-Q8_0.gguf"));
  EXPECT_THAT(choose(several, "o/m:Q2_K").error().message, HasSubstr("m-Q4_K_M.gguf, m-Q8_0.gguf"));
  EXPECT_EQ(choose({"a-F16.gguf", "a-F32.gguf"}, "o/m").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(choose({"pytorch_model.bin"}, "o/m").error().code, ErrorCode::kNotFound);
}

TEST(ChooseHubFiles, AllPartsOfAGgufFile) {
  const std::vector<std::string> names = {"a-F16.gguf",
                                          "a-Q8_0-00001-of-00003.gguf",
                                          "a-Q8_0-00002-of-00003.gguf",
                                          "a-Q8_0-00003-of-00003.gguf"};
  EXPECT_THAT(*choose(names, "o/m:Q8_0"), ElementsAre(names[3], names[2], names[1]));
  EXPECT_THAT(*choose({names.begin() + 1, names.end()}, "o/m"),
              ElementsAre(names[3], names[2], names[1]));
  EXPECT_THAT(choose({names[1], names[3]}, "o/m:Q8_0").error().message, HasSubstr(names[2]));
  EXPECT_THAT(
      *choose({"Q8_0/a-00002-of-00002.gguf", "Q8_0/a-00001-of-00002.gguf", "Q8_0/mmproj-a.gguf"},
              "o/m:Q8_0"),
      ElementsAre("Q8_0/a-00002-of-00002.gguf", "Q8_0/a-00001-of-00002.gguf"));
  EXPECT_EQ(choose({"a-Q8_0.gguf", "b-Q8_0.gguf"}, "o/m:Q8_0").error().code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace warprow
