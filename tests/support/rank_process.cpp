// SPDX-License-Identifier: Apache-2.0
// The rank process of tests, in place of the program itself.
#include "executor/mp/rank_main.h"

int main(int argc, char** argv) {
  const auto rank = warprow::RankArguments::parse({argv + 1, argv + argc});
  return rank ? warprow::rank_main(*rank) : 2;
}
