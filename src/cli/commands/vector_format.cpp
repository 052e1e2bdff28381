// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/vector_format.h"

#include "cli/answer.h"
#include "cli/note.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

class JsonlFormat final : public VectorFormat {
 public:
  explicit JsonlFormat(bool embeds) : member_(embeds ? "embedding" : "probs") {}

  std::string head(int64_t /*num_lines*/) const override { return ""; }

  std::string result(int64_t line, const RequestUpdate& update) const override {
    return fmt::format("{{\"index\":{},\"{}\":[{}],\"num_tokens\":{}}}\n",
                       line,
                       member_,
                       fmt::join(update.pooled, ","),
                       update.num_prompt_tokens);
  }

  std::string failure(int64_t line, const Error& error) const override {
    AnswerJson json{{"index", line}};
    json.update(error_json(error));
    return json_line(json);
  }

 private:
  const char* member_;
};

std::string bytes_of(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class NpyFormat final : public VectorFormat {
 public:
  explicit NpyFormat(int32_t width) : width_(width) {}

  std::string head(int64_t num_lines) const override {
    constexpr size_t kSize = 128;  // a multiple of 64, as the format asks
    std::string text("\x93NUMPY\x01\x00", 8);
    text += static_cast<char>(kSize - text.size() - 2);
    text += '\0';
    text += fmt::format(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", num_lines, width_);
    text.resize(kSize - 1, ' ');
    return text + '\n';
  }

  std::string result(int64_t /*line*/, const RequestUpdate& update) const override {
    return bytes_of(update.pooled);
  }

  std::string failure(int64_t line, const Error& error) const override {
    note("warprow: text {}: {}\n", line, error.message);
    return bytes_of(std::vector<float>(static_cast<size_t>(width_), std::nanf("")));
  }

 private:
  int32_t width_;
};

}  // namespace

std::unique_ptr<VectorFormat> make_jsonl_format(bool embeds) {
  return std::make_unique<JsonlFormat>(embeds);
}

std::unique_ptr<VectorFormat> make_npy_format(int32_t width) {
  return std::make_unique<NpyFormat>(width);
}

}  // namespace warprow
