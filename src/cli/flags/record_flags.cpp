// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/record_flags.h"

#include "cli/replay/recorded_run.h"
#include "cli/replay/step_file_writer.h"
#include "cli/replay/step_recorder.h"
#include "config/parse_size.h"

#include <utility>

#include <fmt/format.h>

namespace warprow {

void add_record_flags(FlagSet& flags, const char* group, RecordFlags& record) {
  flags.add_value({.name = "record-steps",
                   .value = "FILE",
                   .group = group,
                   .help = "keep the messages of the last steps in FILE, for `warprow replay`: "
                           "shapes, counts and hashes [none]",
                   .common = false},
                  [&record](const std::string& text) -> Result<void> {
                    record.path = text;
                    return {};
                  });
  flags.add_value(
      {.name = "record-steps-bytes",
       .value = "SIZE",
       .group = group,
       .help = "size of that file; the newest steps replace the oldest; at least 1MiB [64MiB]",
       .common = false},
      [&record](const std::string& text) -> Result<void> {
        const Result<int64_t> bytes = parse_size(text);
        if (!bytes || *bytes < kMinStepFileBytes) {
          return fail(ErrorCode::kInvalidArgument,
                      fmt::format("--record-steps-bytes: '{}' is no size of at least 1MiB", text));
        }
        record.max_bytes = *bytes;
        return {};
      });
  flags.add_switch({.name = "record-tokens",
                    .value = "",
                    .group = group,
                    .help = "record token ids too, so that the steps can run again; FILE then "
                            "holds what clients sent and got",
                    .common = false},
                   [&record](bool is_on) { record.with_ids = is_on; });
}

Result<void> check_record_flags(const RecordFlags& record) {
  if (record.with_ids && record.path.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--record-tokens needs --record-steps");
  }
  return {};
}

std::unique_ptr<Executor> record_steps(std::unique_ptr<Executor> executor,
                                       const EngineConfig& config,
                                       const RecordFlags& record,
                                       const std::string& version) {
  if (record.path.empty()) {
    return executor;
  }
  RecordedRun run;
  run.version = version;
  run.with_ids = record.with_ids;
  run.model_hash = value_or_throw(model_hash(config));
  run.backends = executor->call(ReadAttentionBackends{}).get().front();
  run.config = config;
  run.facts = executor->model_facts();
  return make_step_recorder(
      std::move(executor),
      value_or_throw(StepFileWriter::create(record.path, record.max_bytes, describe(run))),
      {.with_ids = record.with_ids});
}

}  // namespace warprow
