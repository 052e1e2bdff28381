// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/bench/serve_load.h"
#include "cli/bench/serve_prompts.h"
#include "cli/bench/serve_report.h"
#include "cli/flags/flag_set.h"

namespace warprow {

// Flags that `bench serve` and `simulate` share: prompts, their arrivals, and what is reported.
void add_dataset_flags(FlagSet& flags,
                       ServeDataset& dataset,
                       const char* num_prompts_help = "requests in all");
void add_arrival_flags(FlagSet& flags, ServeLoad& load);
void add_report_flags(FlagSet& flags, ServeReportOptions& report);

// An error names the flags whose values make no arrivals.
Result<void> check_arrivals(const ServeLoad& load);

}  // namespace warprow
