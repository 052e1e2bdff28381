// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/step_digest.h"

#include "wire/serialize.h"

#include <array>
#include <span>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

uint64_t hash_of(const std::vector<TokenId>& tokens) {
  return payload_checksum(
      {reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size() * sizeof(TokenId)});
}

// FNV-1a over words.
uint64_t add(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x100000001b3ULL; }

}  // namespace

StepDigest digest_of(const ModelRunnerOutput& output) {
  StepDigest digest{output.step,
                    0xcbf29ce484222325ULL,
                    hash_of(output.token_ids),
                    hash_of(output.draft_token_ids)};
  for (const RowOutput& row : output.rows) {
    for (const uint64_t value : {static_cast<uint64_t>(static_cast<int32_t>(row.row)),
                                 uint64_t{row.generation},
                                 static_cast<uint64_t>(row.tokens.count),
                                 static_cast<uint64_t>(row.num_rejected),
                                 static_cast<uint64_t>(row.failure)}) {
      digest.rows = add(digest.rows, value);
    }
  }
  return digest;
}

std::string difference(const StepDigest& first,
                       int32_t first_rank,
                       const StepDigest& second,
                       int32_t second_rank) {
  struct DigestField {
    const char* name;
    uint64_t first;
    uint64_t second;
  };
  const std::array<DigestField, 4> fields = {
      DigestField{"step", static_cast<uint64_t>(first.step), static_cast<uint64_t>(second.step)},
      DigestField{"rows", first.rows, second.rows},
      DigestField{"token_ids", first.token_ids, second.token_ids},
      DigestField{"draft_token_ids", first.draft_token_ids, second.draft_token_ids}};
  for (const DigestField& field : fields) {
    if (field.first != field.second) {
      return fmt::format("step {}: the hash of {} is {:016x} on rank {} and {:016x} on rank {}",
                         first.step,
                         field.name,
                         field.first,
                         first_rank,
                         field.second,
                         second_rank);
    }
  }
  return "";
}

}  // namespace warprow
