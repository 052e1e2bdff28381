// SPDX-License-Identifier: Apache-2.0
#include "attention/layer_backends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(std::string_view text) {
  const auto backends = layer_backends(text, 4);
  return backends ? "" : backends.error().message;
}

TEST(LayerBackends, OneNameIsForAllLayers) {
  EXPECT_THAT(*layer_backends("auto", 2), ElementsAre("auto", "auto"));
  EXPECT_THAT(*layer_backends("native", 2), ElementsAre("native", "native"));
}

TEST(LayerBackends, ListsGiveLayersToBackends) {
  EXPECT_THAT(*layer_backends("native:0-1,flashinfer", 4),
              ElementsAre("native", "native", "flashinfer", "flashinfer"));
  EXPECT_THAT(*layer_backends("native:3,flashinfer:1-2", 4),
              ElementsAre("auto", "flashinfer", "flashinfer", "native"));
}

TEST(LayerBackends, ErrorsNameTheEntry) {
  EXPECT_THAT(error_of("native:0-4"), HasSubstr("'native:0-4' is beyond the last layer, 3"));
  EXPECT_THAT(error_of("native:2-1"), HasSubstr("'native:2-1' is no range"));
  EXPECT_THAT(error_of("native:"), HasSubstr("'native:' is no range"));
  EXPECT_THAT(error_of("native:0-2,flashinfer:2"),
              HasSubstr("layer 2 is given to native and to flashinfer"));
  EXPECT_THAT(error_of("native,flashinfer:0"), HasSubstr("'native' takes all layers"));
  EXPECT_THAT(error_of("native:0,"), HasSubstr("lacks a name"));
  EXPECT_THAT(error_of(""), HasSubstr("lacks a name"));
}

}  // namespace
}  // namespace warprow
