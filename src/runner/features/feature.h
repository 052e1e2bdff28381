// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "device/stream.h"
#include "runner/features/runner_parts.h"
#include "runner/input_batch.h"
#include "runner/logits_head.h"
#include "runner/staged_writes.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <memory>
#include <span>

namespace warprow {

// What features request of a step before its sizes are fixed.
struct StepVote {
  std::span<ScheduledRow> rows;  // in batch order; a feature may lower a row's num_logits
  bool eager = false;            // run no part of this step from a graph
  bool mark_forward = false;     // a caller needs forward_done() between the two phases
  bool reads_logits = false;     // a before_sample hook reads or changes logits
};

// The two parts of a step that may run from a graph.
enum class StepPart : uint8_t { kForward, kSample };

// A feature around the forward, in a file of its own. The runner calls the hooks of every feature in the order of
// registry.cpp and names none. All hooks do nothing by default. A feature allocates its device memory in its
// constructor, from the arenas of RunnerParts, so that the memory plan counts it. docs/adr/0016 gives the reasons
// for this set of hooks.
//
// A stage of a pipeline before the last samples nothing: there prepare_sample, before_sample and after_rows are not
// called, and rows have no results in on_output.
//
// Hooks "inside a graph" enqueue work that is recorded and replayed. It may differ only between steps for which
// graph_key differs, reads what varies at fixed addresses, and must handle padded rows.
class RunnerFeature {
 public:
  virtual ~RunnerFeature() = default;

  // Rows and tables, on the host, before the step is uploaded.
  // A row is given to a request; `step` holds the pools that the spans of `row` refer to.
  virtual void on_row_added(const NewRow& /*row*/,
                            const SchedulerOutput& /*step*/,
                            StagedWrites& /*staged*/) {}
  // A row is released.
  virtual void on_row_removed(RowId /*row*/) {}
  // Called once a step, after its rows were updated.
  virtual void stage(const SchedulerOutput& /*step*/, StagedWrites& /*staged*/) {}
  virtual void vote(StepVote& /*vote*/) {}
  // What a recorded part depends on besides its sizes and its sampling rules.
  [[nodiscard]] virtual uint64_t graph_key(StepPart /*part*/) const { return 0; }

  // The forward. before_forward and after_forward run outside of graphs: their work is enqueued again in every
  // step. Inputs are built before before_layers, which is inside the graph where the forward is recorded whole.
  virtual void before_forward(Stream& /*stream*/, const InputBatch& /*batch*/) {}
  virtual void before_layers(Stream& /*stream*/, const InputBatch& /*batch*/) {}
  virtual void after_forward(Stream& /*stream*/, const InputBatch& /*batch*/) {}

  // Sampling. prepare_sample runs on the host before sampling is submitted. `entry` is the step's entry of rings
  // with one entry per step in flight.
  virtual void prepare_sample(const InputBatch& /*batch*/,
                              const GrammarOutput* /*grammar*/,
                              int32_t /*entry*/) {}
  // Inside the graph: before the sampler, and after the update of the rows, where proposers write the drafts of the
  // next step. logits: those of num_logits_padded that this rank samples from.
  virtual void before_sample(Stream& /*stream*/, const LogitsShare& /*logits*/) {}
  virtual void after_rows(Stream& /*stream*/, const InputBatch& /*batch*/) {}
  // Outside of graphs: the logits buffer may be reused, hidden states are still valid.
  virtual void after_sample(Stream& /*stream*/, const InputBatch& /*batch*/) {}

  // After the step's event, so the step's output does not wait for this work.
  virtual void after_event(Stream& /*stream*/, const InputBatch& /*batch*/) {}
  // The step's output is being taken. Called once for each step, in order.
  virtual void on_output(ModelRunnerOutput& /*output*/) {}
};

// The features that the options select, in execution order.
std::vector<std::unique_ptr<RunnerFeature>> make_features(const RunnerParts& parts,
                                                          const FeatureOptions& options);

}  // namespace warprow
