// SPDX-License-Identifier: Apache-2.0
#include "cli/visible_text.h"

#include "cli/flags/server_flags.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(VisibleText, ControlsBecomeQuestionMarks) {
  EXPECT_EQ(visible_text("a \x1b[2J\r\n\t\x7f\xc2\x9bz"), "a ?[2J?????z");
  EXPECT_EQ(visible_text("é \xc2\xa0…\xc2"), "é \xc2\xa0…\xc2");
  EXPECT_EQ(refusal_text({.status = 503, .body = "{\"error\": \"no\\u001b]0;t\\u0007\"}"}),
            "503: no?]0;t?");
}

}  // namespace
}  // namespace warprow
