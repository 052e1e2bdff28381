// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_messages.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(RankMessages, AStartCarriesTheSettingsAndWhetherTheRunIsOffline) {
  for (const bool offline : {false, true}) {
    RankStart sent;
    sent.config.model = "a model";
    sent.config.max_num_seqs = 7;
    sent.config.offline = offline;
    std::vector<uint8_t> bytes;
    encode(sent, bytes);
    RankStart got;
    decode(bytes, got);
    EXPECT_EQ(got.config.model, "a model");
    EXPECT_EQ(got.config.max_num_seqs, 7);
    EXPECT_EQ(got.config.max_num_batched_tokens, 0);
    EXPECT_EQ(got.config.offline, offline);
  }
}

}  // namespace
}  // namespace warprow
