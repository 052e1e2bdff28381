// SPDX-License-Identifier: Apache-2.0
#include "tests/support/lora_cases.h"

#include <gtest/gtest.h>

namespace warprow::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, Lora, ::testing::Values("cpu"));

}  // namespace
}  // namespace warprow::test
