// SPDX-License-Identifier: Apache-2.0
#include "executor/external/rank_report.h"

#include "wire/archive.h"

#include <string>

namespace warprow {
namespace {

struct Report {
  RankPhase phase = RankPhase::kStarting;
  int64_t step = 0;
  int64_t retired = 0;
  std::string failure;
};

// In both directions.
template <typename Archive, typename R>
void visit_report(Archive& archive, R& report) {
  archive(report.phase, report.step, report.retired, report.failure);
}

}  // namespace

void encode_report(const RankState& state, std::vector<uint8_t>& bytes) {
  bytes.clear();
  wire::Writer writer(bytes);
  const Report report{state.phase.load(), state.step.load(), state.retired.load(), state.failure()};
  visit_report(writer, report);
}

bool take_report(std::span<const uint8_t> bytes, RankState& state) {
  Report report;
  wire::Reader reader(bytes);
  visit_report(reader, report);
  if (!reader.ok() || reader.num_left() != 0 || report.phase > RankPhase::kOperation ||
      report.step < 0 || report.retired < 0) {
    return false;
  }
  state.phase.store(report.phase);
  state.step.store(report.step);
  state.retired.store(report.retired);
  if (!report.failure.empty()) {
    state.fail(report.failure);
  }
  state.beats.fetch_add(1);
  return true;
}

}  // namespace warprow
