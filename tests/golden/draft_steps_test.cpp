// SPDX-License-Identifier: Apache-2.0
// How many steps drafts save on the real model, on texts that it repeats. bench/draft_steps.py measures more texts.
#include "files/model_files.h"
#include "tests/support/model_rig.h"
#include "text/text_model.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;

constexpr int32_t kTokens = 64;

constexpr const char* kQuotes =
    "The committee wrote: \"The bridge over the river must be repaired before the winter, because "
    "the ice will damage the pillars that were built in the last century.\" The mayor answered: "
    "\"There is no money for the bridge this year, but the council will ask the province for help "
    "in the spring.\"\n\nSummary with quotes: The committee wrote: \"The bridge over";

// A list three times, and its beginning.
std::string list_text() {
  const std::string list =
      "Today's list\nApples from the north orchard: 12 boxes.\nPears from the south orchard: 7 "
      "boxes.\nPlums from the valley: 31 boxes.\n\n";
  return list + list + list + "Today's list\n";
}

struct TextOutcome {
  std::vector<TokenId> tokens;
  int64_t num_steps = 0;
};

TextOutcome run_text(const std::string& text, const std::string& speculation) {
  const std::unique_ptr<TextModel> model =
      value_or_throw(load_text_model(value_or_throw(resolve_model("smollm2"))));
  RigOptions options;
  options.config.model = "smollm2";
  options.config.max_model_len = 512;
  options.config.kv_cache_memory_bytes = int64_t{64} << 20;
  options.config.speculative_config = speculation;
  options.debug_checks = false;
  ModelRig rig(options);
  Request request;
  request.id = 1;
  request.prompt = model->tokenizer.encode(text, /*add_special=*/true);
  request.max_tokens = kTokens;
  rig.add(request);
  return {rig.run().at(1).tokens, rig.executor().stats().steps};
}

// With the rule for the length of drafts, which begins without any.
TEST(DraftSteps, TextsThatRepeatThemselvesTakeHalfTheSteps) {
  if (!resolve_model("smollm2")) {
    GTEST_SKIP() << "smollm2 is not in the cache: run ./dev demo or ./dev test";
  }
  for (const std::string& text : {std::string(kQuotes), list_text()}) {
    SCOPED_TRACE(text);
    const TextOutcome plain = run_text(text, "");
    EXPECT_EQ(std::ssize(plain.tokens), kTokens);
    for (
        const char* speculation :
        {R"({"method":"ngram","prompt_lookup_min":2,"prompt_lookup_max":5,"num_speculative_tokens":7})",
         R"({"method":"suffix","num_speculative_tokens":7})"}) {
      SCOPED_TRACE(speculation);
      const TextOutcome drafted = run_text(text, speculation);
      EXPECT_EQ(drafted.tokens, plain.tokens);
      EXPECT_LE(2 * drafted.num_steps, plain.num_steps);
    }
  }
}

}  // namespace
}  // namespace warprow
