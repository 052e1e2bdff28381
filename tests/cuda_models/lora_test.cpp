// SPDX-License-Identifier: Apache-2.0
#include "tests/support/lora_cases.h"

#include <gtest/gtest.h>

namespace warprow::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, Lora, ::testing::Values("cuda"));

}  // namespace
}  // namespace warprow::test
