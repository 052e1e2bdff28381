// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/flag_set.h"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class FlagSetTest : public ::testing::Test {
 protected:
  FlagSetTest() {
    flags_.add_text({.name = "prompt",
                     .value = "TEXT",
                     .group = "Prompt",
                     .help = "the text",
                     .short_name = "p"},
                    prompt_);
    flags_.add_text({.name = "pipeline-size",
                     .value = "N",
                     .group = "Engine",
                     .help = "parts",
                     .common = false,
                     .alias = "pp"},
                    pipeline_);
    flags_.add_value({.name = "top-k", .value = "N", .group = "Sampling", .help = "keep N"},
                     [this](const std::string& text) -> Result<void> {
                       if (text == "bad") {
                         return fail(ErrorCode::kInvalidArgument, "--top-k: bad is bad");
                       }
                       numbers_.push_back(text);
                       return {};
                     });
    flags_.add_switch(
        {.name = "async-mode", .value = "", .group = "Engine", .help = "go ahead", .common = false},
        [this](bool on) { async_ = on; });
    flags_.add_positionals(positionals_);
  }

  std::string parse(const std::vector<std::string>& arguments) {
    const Result<void> done = flags_.parse(arguments);
    return done ? "" : done.error().message;
  }

  FlagSet flags_{"generate", "goes on", "MODEL [FLAGS]"};
  std::optional<std::string> prompt_;
  std::optional<std::string> pipeline_;
  std::vector<std::string> numbers_;
  std::optional<bool> async_;
  std::vector<std::string> positionals_;
};

TEST_F(FlagSetTest, AnAliasIsItsFlag) {
  EXPECT_EQ(parse({"-pp", "2", "-p", "p"}), "");
  EXPECT_EQ(pipeline_, "2");
  EXPECT_EQ(prompt_, "p");
  EXPECT_EQ(parse({"-pp=4"}), "");
  EXPECT_EQ(pipeline_, "4");
  EXPECT_EQ(parse({"-pp"}), "-pp: needs a value");
  EXPECT_THAT(*flags_.help("all"), HasSubstr("-pp, --pipeline-size N"));
}

TEST_F(FlagSetTest, ReadsEveryFormOfAFlag) {
  EXPECT_EQ(parse({"model", "-p", "hi", "--top-k", "-1", "--top_k=2", "--async_mode"}), "");
  EXPECT_EQ(prompt_, "hi");
  EXPECT_THAT(numbers_, ElementsAre("-1", "2"));
  EXPECT_EQ(async_, true);
  EXPECT_THAT(positionals_, ElementsAre("model"));
}

// Prompts are the user's text and never parsed as flags.
TEST_F(FlagSetTest, AValueIsTakenAsItIs) {
  for (const char* text : {"",
                           " ",
                           "-x",
                           "--top_k",
                           "--top-k",
                           "--",
                           "-",
                           "[1,2]",
                           "a=b",
                           "\"quoted\"",
                           "a,b",
                           "{x}",
                           "%d\n",
                           "'",
                           "é"}) {
    for (const bool joined : {false, true}) {
      FlagSet flags("generate", "", "");
      std::optional<std::string> prompt;
      flags.add_text(
          {.name = "prompt", .value = "TEXT", .group = "", .help = "", .short_name = "p"}, prompt);
      std::vector<std::string> arguments{"-p", text};
      if (joined) {
        arguments = {std::string("--prompt=") + text};
      }
      const Result<void> done = flags.parse(arguments);
      ASSERT_TRUE(done) << "'" << text << "': " << done.error().message;
      EXPECT_EQ(prompt, text);
    }
  }
}

TEST_F(FlagSetTest, OfASwitchTheLastCounts) {
  EXPECT_EQ(parse({"--async-mode", "--no-async-mode"}), "");
  EXPECT_EQ(async_, false);
}

TEST_F(FlagSetTest, OfATextTheLastCounts) {
  EXPECT_EQ(parse({"-p", "a", "--prompt", "b"}), "");
  EXPECT_EQ(prompt_, "b");
}

TEST_F(FlagSetTest, ArgumentsAfterTwoDashesAreNoFlags) {
  EXPECT_EQ(parse({"--", "--top-k"}), "");
  EXPECT_THAT(positionals_, ElementsAre("--top-k"));
}

TEST_F(FlagSetTest, PositionalsKeepTheirOrderBetweenFlags) {
  EXPECT_EQ(parse({"a", "--top-k", "1", "[b,c]", "-p", "x", "d"}), "");
  EXPECT_THAT(positionals_, ElementsAre("a", "[b,c]", "d"));
}

TEST_F(FlagSetTest, MistakesAreNamed) {
  EXPECT_EQ(parse({"--top-k", "bad"}), "--top-k: bad is bad");
  EXPECT_EQ(parse({"--topk", "3"}), "unknown flag --topk; did you mean --top-k?");
  EXPECT_EQ(parse({"--k=3"}), "unknown flag --k; did you mean --top-k?");
  EXPECT_EQ(parse({"--frobnicate=3"}),
            "unknown flag --frobnicate; see warprow generate --help=all");
  EXPECT_EQ(parse({"-z"}), "unknown flag -z; see warprow generate --help=all");
  EXPECT_EQ(parse({"model", "--top-k"}), "--top-k: needs a value");
}

TEST_F(FlagSetTest, WithoutPositionalsAnArgumentIsAMistake) {
  FlagSet flags("chat", "", "");
  const Result<void> done = flags.parse({"what"});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message, "unexpected argument 'what'");
}

TEST_F(FlagSetTest, HelpIsShortUnlessAsked) {
  const std::string brief = *flags_.help("");
  EXPECT_THAT(brief, HasSubstr("usage: warprow generate MODEL [FLAGS]"));
  EXPECT_THAT(brief, HasSubstr("-p, --prompt TEXT"));
  EXPECT_THAT(brief, Not(HasSubstr("async-mode")));
  EXPECT_THAT(brief, HasSubstr("--help=all"));
  EXPECT_THAT(*flags_.help("all"), HasSubstr("--[no-]async-mode"));
  EXPECT_THAT(*flags_.help("sampling"), HasSubstr("--top-k N"));
  EXPECT_THAT(*flags_.help("sampling"), Not(HasSubstr("--prompt")));
  EXPECT_THAT(*flags_.help("--top_k"), HasSubstr("--top-k N"));
  EXPECT_FALSE(flags_.help("nothing"));
}

TEST(HelpScope, IsFoundBeforeTwoDashes) {
  EXPECT_EQ(help_scope({"-m", "x"}), std::nullopt);
  EXPECT_EQ(help_scope({"-m", "x", "-h"}), "");
  EXPECT_EQ(help_scope({"--help=all"}), "all");
  EXPECT_EQ(help_scope({"--", "--help"}), std::nullopt);
}

TEST(NearestWord, FindsSlipsOnly) {
  const std::vector<std::string> known{"generate", "chat", "tokenize"};
  EXPECT_EQ(nearest_word("genrate", known), "generate");
  EXPECT_EQ(nearest_word("chta", known), "");
  EXPECT_EQ(nearest_word("chatt", known), "chat");
  EXPECT_EQ(nearest_word("serve", known), "");
}

TEST_F(FlagSetTest, ASwitchMayHaveAText) {
  EXPECT_EQ(parse({"--async-mode=false"}), "");
  EXPECT_EQ(async_, false);
  EXPECT_EQ(parse({"--no-async-mode", "--async_mode=on"}), "");
  EXPECT_EQ(async_, true) << "the last one counts";
  EXPECT_EQ(parse({"--async-mode=maybe"}), "--async-mode: 'maybe' is neither true nor false");
  EXPECT_THAT(parse({"--no-async-mode=true"}), HasSubstr("unknown flag --no-async-mode"));
}

}  // namespace
}  // namespace warprow
