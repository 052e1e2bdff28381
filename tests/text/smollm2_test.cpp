// SPDX-License-Identifier: Apache-2.0
// The default model's tokenizer and chat template against results of transformers.
#include "tests/text/text_test_support.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(test::read_file(test::golden(name)));
}

TEST(Smollm2, TokenizerCasesAreEqual) {
  WR_NEED_SMOLLM2();
  const Tokenizer& tokenizer = test::smollm2()->tokenizer;
  const auto cases = golden_json("smollm2_tokenizer_cases.json");
  ASSERT_EQ(cases.size(), 26U);
  for (const auto& c : cases) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer.encode(text, false), ids) << text;
    EXPECT_EQ(tokenizer.encode(text, true), ids) << "this model adds no special tokens";
    EXPECT_EQ(tokenizer.decode(ids, false), text);
  }
}

TEST(Smollm2, PromptsAreEqual) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  int chats = 0;
  const auto prompts = golden_json("smollm2_hf_fp32.json")["prompts"];
  for (const auto& prompt : prompts) {
    const auto text = prompt["text"].get<std::string>();
    if (prompt["kind"] == "chat") {
      ChatRequest request;
      request.messages = prompt["messages"];
      ASSERT_TRUE(model.chat_template);
      const auto rendered = model.chat_template->render(request);
      ASSERT_TRUE(rendered) << rendered.error().message;
      EXPECT_EQ(*rendered, text);
      ++chats;
    }
    EXPECT_EQ(model.tokenizer.encode(text, false), prompt["hf_ids"].get<std::vector<TokenId>>())
        << text;
    EXPECT_EQ(model.tokenizer.decode(prompt["hf_greedy"].get<std::vector<TokenId>>(), false),
              prompt["hf_greedy_text"].get<std::string>());
  }
  EXPECT_GT(chats, 0);
}

TEST(Smollm2, KnowsItsEnds) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  EXPECT_EQ(model.bos, 1);
  EXPECT_EQ(model.eos, std::vector<TokenId>{2});
  EXPECT_EQ(model.tokenizer.vocab_size(), 49152);
  EXPECT_TRUE(model.tokenizer.is_special(2));
  EXPECT_EQ(model.tokenizer.find("<|im_end|>"), 2);
  EXPECT_EQ(model.tokenizer.decode(std::vector<TokenId>{1, 504, 2}, true), "The");
  EXPECT_EQ(model.tokenizer.token_text(3575), "Ġcapital");
  EXPECT_EQ(model.tokenizer.token_bytes(3575), " capital");
}

}  // namespace
}  // namespace warprow
