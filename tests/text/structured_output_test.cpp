// SPDX-License-Identifier: Apache-2.0
#include "text/structured_output.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

StructuredOutput read(const std::string& request) {
  const auto wanted = read_structured_output(request);
  EXPECT_TRUE(wanted) << request << ": " << wanted.error().message;
  EXPECT_TRUE(wanted && *wanted) << request;
  return wanted && *wanted ? **wanted : StructuredOutput{};
}

TEST(StructuredOutput, EachFormIsReadByItsName) {
  EXPECT_EQ(read(R"({"structured_outputs":{"json":{"type":"object","b":1,"a":2}}})"),
            (StructuredOutput{GrammarKind::kJsonSchema, R"({"type":"object","b":1,"a":2})"}))
      << "the order of members stays";
  EXPECT_EQ(read(R"({"structured_outputs":{"json":" {\"type\": 1"}})"),
            (StructuredOutput{GrammarKind::kJsonSchema, " {\"type\": 1"}))
      << "text is passed to the compiler as it is";
  EXPECT_EQ(read(R"({"structured_outputs":{"json_object":true,"regex":null}})"),
            (StructuredOutput{GrammarKind::kJsonObject, ""}));
  EXPECT_EQ(read(R"({"structured_outputs":{"regex":"a+","json_object":false}})"),
            (StructuredOutput{GrammarKind::kRegex, "a+"}));
  EXPECT_EQ(read(R"({"structured_outputs":{"grammar":"start: \"a\""}})"),
            (StructuredOutput{GrammarKind::kLark, "start: \"a\""}));
  EXPECT_EQ(read(R"({"structured_outputs":{"choice":["yes","no"]}})"),
            (StructuredOutput{GrammarKind::kChoice, R"(["yes","no"])"}));
  for (const char* tag : {R"({"type":1})", R"("{\"type\":1}")"}) {
    EXPECT_EQ(read(R"({"structured_outputs":{"structural_tag":)" + std::string(tag) + "}}"),
              (StructuredOutput{GrammarKind::kStructuralTag, R"({"type":1})"}));
  }
}

TEST(StructuredOutput, ResponseFormatsAreReadToo) {
  EXPECT_EQ(read(R"({"response_format":{"type":"json_object"}})"),
            (StructuredOutput{GrammarKind::kJsonObject, "", "response_format"}));
  EXPECT_EQ(read(R"({"response_format":{"type":"json_schema",)"
                 R"("json_schema":{"name":"x","strict":true,"schema":{"z":1,"y":2}}}})"),
            (StructuredOutput{GrammarKind::kJsonSchema, R"({"z":1,"y":2})", "response_format"}));
  EXPECT_EQ(read(R"({"response_format":{"type":"structural_tag","format":{"b":1,"a":2}}})"),
            (StructuredOutput{GrammarKind::kStructuralTag,
                              R"({"type":"structural_tag","format":{"b":1,"a":2}})",
                              "response_format"}));
  EXPECT_EQ(read(R"({"response_format":{"type":"text"},"structured_outputs":{"regex":"a"}})"),
            (StructuredOutput{GrammarKind::kRegex, "a"}));
}

TEST(StructuredOutput, NothingIsWantedWithoutAField) {
  for (const char* request : {"{}",
                              R"({"structured_outputs":null,"response_format":null})",
                              R"({"response_format":{"type":"text"}})",
                              R"({"prompt":"structured_outputs"})"}) {
    const auto wanted = read_structured_output(request);
    ASSERT_TRUE(wanted) << request;
    EXPECT_FALSE(wanted->has_value()) << request;
  }
}

struct BadCase {
  std::string request;
  ErrorCode code;
  const char* message;  // a part of the message
};

TEST(StructuredOutput, MistakesAreNamedWithTheirField) {
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  std::string deep = R"({"structured_outputs":{"json":)";
  for (int i = 0; i < 100000; ++i) {
    deep += R"({"a":)";
  }
  const BadCase cases[] = {
      {"[1]", kInvalid, "not a JSON object"},
      {"{", kInvalid, "not a JSON object"},
      {deep, kInvalid, "nests deeper"},
      {R"({"structured_outputs":[]})", kInvalid, "must be an object with one of json"},
      {R"({"structured_outputs":{}})", kInvalid, "needs one of json"},
      {R"({"structured_outputs":{"json_object":false}})", kInvalid, "needs one of json"},
      {R"({"structured_outputs":{"json":1}})", kInvalid, "structured_outputs.json: must be"},
      {R"({"structured_outputs":{"regex":["a"]}})", kInvalid, "regex: must be text"},
      {R"({"structured_outputs":{"grammar":1}})", kInvalid, "grammar: must be text"},
      {R"({"structured_outputs":{"choice":[]}})", kInvalid, "choice: must be a list"},
      {R"({"structured_outputs":{"choice":["a",1]}})", kInvalid, "choice: must be a list"},
      {R"({"structured_outputs":{"json_object":1}})", kInvalid, "json_object: must be true"},
      {R"({"structured_outputs":{"regex":"a","choice":["b"]}})", kInvalid, "beside another"},
      {R"({"structured_outputs":{"shape":"a"}})", kInvalid, "unknown field 'shape'"},
      {R"({"structured_outputs":{"structural_tag":1}})",
       kInvalid,
       "structured_outputs.structural_tag: must be"},
      {R"({"structured_outputs":{"whitespace_pattern":"a"}})",
       ErrorCode::kUnsupported,
       "structured_outputs.whitespace_pattern"},
      {R"({"response_format":"json"})", kInvalid, "response_format: must be an object"},
      {R"({"response_format":{"type":"xml"}})", kInvalid, "response_format.type"},
      {R"({"response_format":{"type":"json_schema"}})", kInvalid, "response_format.json_schema"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"name":"x"}}})",
       kInvalid,
       "response_format.json_schema"},
      {R"({"response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"}})",
       kInvalid,
       "beside structured_outputs"},
  };
  for (const BadCase& c : cases) {
    const auto wanted = read_structured_output(c.request);
    ASSERT_FALSE(wanted) << c.request.substr(0, 80);
    EXPECT_EQ(wanted.error().code, c.code) << wanted.error().message;
    EXPECT_NE(wanted.error().message.find(c.message), std::string::npos)
        << c.request.substr(0, 80) << "\n"
        << wanted.error().message;
  }
}

}  // namespace
}  // namespace warprow
