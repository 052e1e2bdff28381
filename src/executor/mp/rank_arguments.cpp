// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_main.h"

#include <charconv>

namespace warprow {
namespace {

constexpr const char* kWord = "rank";

bool read_number(const std::string& word, int32_t& number) {
  const char* const end = word.data() + word.size();
  return std::from_chars(word.data(), end, number).ptr == end && number >= 0;
}

}  // namespace

std::vector<std::string> RankArguments::words() const {
  return {kWord, std::to_string(rank), std::to_string(tensor_size), std::to_string(pipeline_size)};
}

std::optional<RankArguments> RankArguments::parse(const std::vector<std::string>& words) {
  RankArguments read;
  const bool good = words.size() == 4 && words[0] == kWord && read_number(words[1], read.rank) &&
                    read_number(words[2], read.tensor_size) &&
                    read_number(words[3], read.pipeline_size);
  return good ? std::optional(read) : std::nullopt;
}

}  // namespace warprow
