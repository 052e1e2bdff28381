// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/grammar_source.h"
#include "tests/support/model_rig.h"
#include "text/grammar.h"
#include "text/text_model.h"

#include <gtest/gtest.h>

namespace warprow::test {

// The grammar of the invariance matrix. Most of its texts are longer than an answer may be.
inline Grammar matrix_grammar(const TextModel& text) {
  GrammarSource source(text);
  return value_or_throw(
      source.compile({GrammarKind::kRegex, R"(([a-e]{1,3}|\{[0-9]+(, [0-9]+)*\}){4,9}\.)"}));
}

// Every fifth request has the grammar.
inline bool has_grammar(const Request& request) { return request.id % 5 == 0; }

// grammar: null if no request has one.
inline void add_request(ModelRig& rig, const Request& request, const Grammar* grammar) {
  if (grammar != nullptr && has_grammar(request)) {
    rig.add(request, *grammar);
  } else {
    rig.add(request);
  }
}

// Whether the grammar allows each of these tokens in turn.
inline void expect_in_grammar(const std::vector<TokenId>& tokens, const Grammar& grammar) {
  GrammarMatcher matcher(grammar);
  for (const TokenId token : tokens) {
    EXPECT_TRUE(matcher.accept(token)) << token;
  }
}

}  // namespace warprow::test
