// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "runner/ops/decide_drafts.h"
#include "runner/ops/draft_inputs.h"
#include "runner/ops/epilogue.h"
#include "runner/ops/head_inputs.h"
#include "runner/ops/place_drafts.h"
#include "runner/ops/prologue.h"
#include "runner/ops/propose_ngram.h"
#include "runner/ops/stage_results.h"
#include "runner/ops/unpack_step.h"

#include <cstdint>
#include <memory>

namespace warprow {

// The runner's integer steps on the device, in the order in which a step runs them. With the parts of prologue.h
// and epilogue.h this lists all launches of a step around the forward. Each is a functor written once for host and
// device. A backend only launches it, in one of three shapes: for_rows (a team of lanes per index, no barrier, no
// exchange), for_teams (the same, whose lanes find a largest value together) or for_items (one lane per index).
class RunnerOps {
 public:
  virtual ~RunnerOps() = default;
  virtual void unpack_step(Stream& stream, const UnpackStep& op, int64_t num_groups) = 0;
  virtual void prologue(Stream& stream, const Prologue& op) = 0;
  virtual void epilogue(Stream& stream, const Epilogue& op, int64_t num_rows) = 0;
  // With speculation: proposers of the next step's drafts, then their copy for the host.
  virtual void propose_ngram(Stream& stream, const ProposeNgram& op, int64_t num_rows) = 0;
  virtual void draft_inputs(Stream& stream, const DraftInputs& op) = 0;
  virtual void next_tokens(Stream& stream, const NextTokens& op) = 0;
  virtual void head_inputs(Stream& stream, const HeadInputs& op) = 0;
  virtual void take_draft(Stream& stream, const TakeDraft& op, int64_t num_rows) = 0;
  virtual void keep_drafts(Stream& stream, const KeepDrafts& op, int64_t num_rows) = 0;
  virtual void decide_drafts(Stream& stream, const DecideDrafts& op, int64_t num_logits) = 0;
  virtual void place_drafts(Stream& stream, const PlaceDrafts& op, int64_t num_rows) = 0;
  virtual void publish_drafts(Stream& stream, const PublishDrafts& op, int64_t num_rows) = 0;
  // Between the stages of a pipeline (runner/stage_link.h).
  virtual void pack_results(Stream& stream, const PackResults& op, int64_t num_rows) = 0;
  virtual void advance_rows(Stream& stream, const AdvanceRows& op, int64_t num_rows) = 0;
  virtual void apply_results(Stream& stream, const ApplyResults& op, int64_t num_rows) = 0;
};

// Launcher has for_rows, for_teams and for_items, each (stream, name, n, functor). Teams of for_teams have
// max_of(n, enough, f): the largest of 0 and f(0) .. f(n - 1), in every lane. f decreases with its argument among values of
// at least `enough`, so a lane may stop at the first of them.
// Instantiated in exactly one file per backend.
template <typename Launcher>
class RunnerOpsImpl final : public RunnerOps {
 public:
  explicit RunnerOpsImpl(Launcher launcher) : launch_(launcher) {}
  void unpack_step(Stream& s, const UnpackStep& op, int64_t num_groups) override {
    launch_.for_rows(s, "unpack_step", op.num_pieces() + num_groups, op);
  }
  void prologue(Stream& s, const Prologue& op) override {
    launch_.for_rows(s, "prologue", op.num_teams(), op);
  }
  void epilogue(Stream& s, const Epilogue& op, int64_t num_rows) override {
    launch_.for_items(s, "epilogue", num_rows, op);
  }
  void propose_ngram(Stream& s, const ProposeNgram& op, int64_t num_rows) override {
    launch_.for_teams(s, "propose_ngram", num_rows, op);
  }
  void draft_inputs(Stream& s, const DraftInputs& op) override {
    launch_.for_items(s, "draft_inputs", op.num_rows, op);
  }
  void next_tokens(Stream& s, const NextTokens& op) override {
    launch_.for_rows(s, "next_tokens", int64_t{op.num_rows} + 1, op);
  }
  void head_inputs(Stream& s, const HeadInputs& op) override {
    launch_.for_items(s, "head_inputs", op.num_rows, op);
  }
  void take_draft(Stream& s, const TakeDraft& op, int64_t num_rows) override {
    launch_.for_teams(s, "take_draft", num_rows, op);
  }
  void keep_drafts(Stream& s, const KeepDrafts& op, int64_t num_rows) override {
    launch_.for_items(s, "keep_drafts", num_rows, op);
  }
  void decide_drafts(Stream& s, const DecideDrafts& op, int64_t num_logits) override {
    launch_.for_items(s, "decide_drafts", num_logits, op);
  }
  void place_drafts(Stream& s, const PlaceDrafts& op, int64_t num_rows) override {
    launch_.for_items(s, "place_drafts", num_rows, op);
  }
  void publish_drafts(Stream& s, const PublishDrafts& op, int64_t num_rows) override {
    launch_.for_items(s, "publish_drafts", num_rows, op);
  }
  void pack_results(Stream& s, const PackResults& op, int64_t num_rows) override {
    launch_.for_items(s, "pack_results", num_rows, op);
  }
  void advance_rows(Stream& s, const AdvanceRows& op, int64_t num_rows) override {
    launch_.for_items(s, "advance_rows", num_rows, op);
  }
  void apply_results(Stream& s, const ApplyResults& op, int64_t num_rows) override {
    launch_.for_items(s, "apply_results", num_rows, op);
  }

 private:
  Launcher launch_;
};

// The operations of the device's backend.
std::unique_ptr<RunnerOps> make_runner_ops(class Device& device);
std::unique_ptr<RunnerOps> make_cuda_runner_ops(class Device& device);

}  // namespace warprow
