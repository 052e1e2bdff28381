// SPDX-License-Identifier: Apache-2.0
#include "tests/text/text_test_support.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

std::vector<std::string> read_inputs(const std::string& path) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  const std::string all = test::read_file(path);
  std::vector<std::string> inputs;
  size_t start = 0;
  for (size_t at = all.find(separator); at != std::string::npos; at = all.find(separator, start)) {
    inputs.push_back(all.substr(start, at - start));
    start = at + separator.size();
  }
  return inputs;
}

std::vector<std::vector<TokenId>> read_outputs(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::vector<TokenId>> outputs;
  for (std::string line; std::getline(in, line);) {
    std::istringstream numbers(line);
    outputs.emplace_back(std::istream_iterator<TokenId>(numbers), std::istream_iterator<TokenId>());
  }
  return outputs;
}

class VocabVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(VocabVectors, IdsAreEqual) {
  const std::string path = test::vocab_dir() + "/ggml-vocab-" + GetParam() + ".gguf";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is absent: tools/fetch_vocab_vectors.sh brings it";
  }
  const Tokenizer tokenizer = test::gguf_tokenizer(path);
  const auto inputs = read_inputs(path + ".inp");
  const auto outputs = read_outputs(path + ".out");
  ASSERT_GT(inputs.size(), 30U);
  ASSERT_LE(inputs.size(), outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(inputs[i], false), outputs[i]) << "case " << i << ": " << inputs[i];
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(inputs[i], false), false), inputs[i])
        << "case " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(,
                         VocabVectors,
                         ::testing::Values("llama-bpe",
                                           "llama-spm",
                                           "qwen2",
                                           "gpt-2",
                                           "qwen35",
                                           "phi-3",
                                           "starcoder",
                                           "refact",
                                           "command-r",
                                           "mpt",
                                           "falcon",
                                           "deepseek-llm",
                                           "deepseek-coder"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace warprow
