// SPDX-License-Identifier: Apache-2.0
#include "text/text_model.h"

#include "files/model_files.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// A directory with a model's text files, removed at the end of the test.
class HfDir : public ::testing::Test {
 protected:
  HfDir() : dir_(::testing::TempDir() + "/warprow_hf_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(dir_);
  }
  ~HfDir() override { std::filesystem::remove_all(dir_); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ + "/" + name) << text;
  }
  void write_tokenizer() const {
    write("tokenizer.json", R"({"version": "1.0", "added_tokens": [
      {"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
      {"id": 2, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
      "model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1, "</s>": 2, "b": 3}, "merges": []}})");
  }
  Result<std::unique_ptr<TextModel>> load() const {
    return load_text_model(ModelFiles{ModelFiles::Kind::kHfDir, dir_, "test"});
  }

  std::string dir_;
};

TEST_F(HfDir, EverythingIsFound) {
  write_tokenizer();
  write("config.json", R"({"eos_token_id": 2, "bos_token_id": 0})");
  write(
      "generation_config.json",
      R"({"eos_token_id": [3, 2, 99], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1})");
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>",
    "chat_template": [{"name": "default", "template": "{{ bos_token }}d"}, {"name": "tool_use", "template": "t"}]})");
  const auto model = value_or_throw(load());
  EXPECT_EQ(model->bos, 1);
  EXPECT_EQ(model->eos, (std::vector<TokenId>{2, 3}));
  EXPECT_FLOAT_EQ(*model->sampling.temperature, 0.6F);
  EXPECT_EQ(model->sampling.top_k, 20);
  EXPECT_FALSE(model->sampling.min_p);
  ASSERT_TRUE(model->chat_template);
  EXPECT_EQ(*model->chat_template->render({}), "<s>d");
  ChatRequest with_tools;
  with_tools.tools = OrderedJson::array({OrderedJson::object()});
  EXPECT_EQ(*model->chat_template->render(with_tools), "t");
}

TEST_F(HfDir, TheTemplateFileWins) {
  write_tokenizer();
  write("tokenizer_config.json", R"({"chat_template": "old"})");
  write("chat_template.jinja", "new");
  EXPECT_EQ(*value_or_throw(load())->chat_template->render({}), "new");
}

TEST_F(HfDir, WhatIsMissingIsSaid) {
  auto none = load();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(none.error().message,
            dir_ +
                ": the model has no tokenizer (tokenizer.json, tokenizer.model and vocab.txt are "
                "missing)");
  write_tokenizer();
  const auto bare = value_or_throw(load());
  ASSERT_FALSE(bare->chat_template);
  EXPECT_EQ(bare->chat_template.error().message, dir_ + ": the model has no chat template");
  EXPECT_FALSE(bare->bos);
  EXPECT_TRUE(bare->eos.empty());
  write("generation_config.json", "[]");
  EXPECT_EQ(load().error().code, ErrorCode::kCorrupt);
}

TEST_F(HfDir, ATemplateThatCannotBeReadLeavesTheModelUsable) {
  write_tokenizer();
  write("chat_template.jinja", "{% bad");
  const auto model = value_or_throw(load());
  EXPECT_FALSE(model->chat_template);
  EXPECT_EQ(model->tokenizer.encode("ab", true), (std::vector<TokenId>{0, 3}));
}

}  // namespace
}  // namespace warprow
