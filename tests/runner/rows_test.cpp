// SPDX-License-Identifier: Apache-2.0
#include "runner/rows.h"

#include "device/cpu/cpu_device.h"
#include "kernels/sample/sample.h"
#include "wire/scheduler_output.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

// The sampler rules that the host derives from a row's parameters.
uint32_t rules_of(const SamplingParams& params) {
  const auto device = cpu::make_cpu_device({});
  Arena arena = device->make_arena(ArenaPurpose::kState, size_t{4} << 20);
  StagedTables tables;
  StepLimits limits;
  limits.max_num_seqs = 1;
  RequestRows rows(arena, *device, limits, tables);
  StagedWrites staged(tables.max_writes(), tables.max_values());
  SchedulerOutput step;
  step.token_ids = {1};
  step.page_ids = {PageId{1}};
  NewRow row;
  row.row = RowId{0};
  row.prompt_len = 1;
  row.prefill_len = 1;
  row.tokens = {0, 1};
  row.params = params;
  rows.append({row.row, 0, {0, 1}}, step, staged);
  rows.add(row, step, staged);
  return rows.host(row.row).sample_rules;
}

TEST(RequestRows, CutsAreToldOfRandomRowsAlone) {
  SamplingParams params;
  params.temperature = 0.8F;
  EXPECT_EQ(rules_of(params), kSampleRandom);
  SamplingParams top_k = params;
  top_k.top_k = 40;
  SamplingParams top_p = params;
  top_p.top_p = 0.9F;
  SamplingParams min_p = params;
  min_p.min_p = 0.05F;
  for (SamplingParams cut : {top_k, top_p, min_p}) {
    EXPECT_EQ(rules_of(cut), kSampleRandom | kSampleCut);
    cut.temperature = 0.0F;
    EXPECT_EQ(rules_of(cut), 0U);
  }
}

}  // namespace
}  // namespace warprow
