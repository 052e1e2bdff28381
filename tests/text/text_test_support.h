// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "files/cache_paths.h"
#include "files/gguf.h"
#include "tests/support/source_path.h"
#include "text/gguf_vocab.h"
#include "text/text_model.h"
#include "text/tokenizer.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

namespace warprow::test {

inline std::string cache_dir() { return CachePaths::from_environment().warprow; }
inline std::string smollm2_path() { return cache_dir() + "/SmolLM2-135M-Instruct.Q4_1.gguf"; }
inline std::string vocab_dir() { return cache_dir() + "/deps/ggml-vocab-0.3.36"; }
inline std::string golden(const std::string& name) {
  return test::source_path("tests/golden/") + name;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline Tokenizer gguf_tokenizer(const std::string& path) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  return value_or_throw(Tokenizer::from_gguf(value_or_throw(read_gguf_vocab(file)), path));
}

// The default model's tokenizer and chat template, loaded once for all tests; null if the file is absent.
inline const TextModel* smollm2() {
  static const std::unique_ptr<TextModel> model = [] {
    std::unique_ptr<TextModel> loaded;
    if (std::filesystem::exists(smollm2_path())) {
      loaded = value_or_throw(load_text_model(value_or_throw(GgufFile::open(smollm2_path()))));
    }
    return loaded;
  }();
  return model.get();
}

}  // namespace warprow::test

#define WR_NEED_SMOLLM2()                                           \
  if (::warprow::test::smollm2() == nullptr) {                      \
    GTEST_SKIP() << ::warprow::test::smollm2_path()                 \
                 << " is absent: tools/fetch.py smollm2 brings it"; \
  }
