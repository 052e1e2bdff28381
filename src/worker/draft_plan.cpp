// SPDX-License-Identifier: Apache-2.0
#include "worker/draft_plan.h"

#include "base/log.h"
#include "files/model_files.h"
#include "models/mtp_spec.h"
#include "models/registry.h"
#include "models/tensor_split.h"
#include "runner/features/eagle_drafts.h"
#include "worker/model_plan.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

tl::unexpected<Error> refuse(ErrorCode code, std::string_view what) {
  return fail(code, fmt::format("--speculative-config: model: {}", what));
}

Result<void> check(const DraftPlan& draft, const ModelPlan& plan, const std::string& name) {
  if (draft.head) {
    return {};
  }
  if (draft.spec.encoder) {
    return refuse(ErrorCode::kUnsupported,
                  fmt::format("'{}' is an encoder, which drafts no tokens", name));
  }
  if (draft.spec.vocab_size != plan.spec.vocab_size) {
    return refuse(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' has a vocabulary of {} tokens, the model that it drafts for {}",
                              name,
                              draft.spec.vocab_size,
                              plan.spec.vocab_size));
  }
  if (std::ranges::any_of(draft.spec.layers, [](const LayerSpec& l) { return l.has_state(); })) {
    return refuse(ErrorCode::kUnsupported,
                  fmt::format("'{}' has layers that keep a state, in which a rejected draft would "
                              "stay",
                              name));
  }
  return {};
}

Result<void> read_head(const ModelPlan& plan, DraftPlan& draft) {
  auto head = read_eagle_spec(
      *draft.checkpoint, plan.config.speculation.method == Speculation::Method::kEagle3, plan.spec);
  if (!head) {
    return tl::unexpected(head.error());
  }
  auto ids = read_draft_ids(*draft.checkpoint, *head);
  if (!ids) {
    return tl::unexpected(ids.error());
  }
  draft.head = *std::move(head);
  draft.head_ids = *std::move(ids);
  draft.spec = draft.head->decoder;
  return {};
}

// The head of a model's own checkpoint.
Result<std::unique_ptr<DraftPlan>> read_own_head(const ModelPlan& plan) {
  auto head = read_mtp_spec(*plan.checkpoint, plan.spec);
  if (!head) {
    return fail(head.error().code,
                fmt::format("--speculative-config: method: mtp: {}", head.error().message));
  }
  set_longest_sequence(head->decoder, plan.spec.max_position);
  auto draft = std::make_unique<DraftPlan>();
  draft->spec = head->decoder;
  draft->head = *std::move(head);
  return draft;
}

Result<void> read_model(DraftPlan& draft) {
  auto spec = read_decoder_spec(*draft.checkpoint);
  if (!spec) {
    return tl::unexpected(spec.error());
  }
  draft.spec = *std::move(spec);
  return {};
}

// A draft model or a head of its own files.
Result<std::unique_ptr<DraftPlan>> read_drafter(const ModelPlan& plan) {
  const ResolvedConfig& config = plan.config;
  const std::string& name = config.speculation.model;
  const WeightFiles weights =
      config.load_format == "dummy" ? WeightFiles::kNotRead : WeightFiles::kRequired;
  auto files = resolve_model(name, CachePaths::from_environment(), weights);
  if (!files) {
    return refuse(files.error().code, files.error().message);
  }
  auto checkpoint = Checkpoint::open(*files, weights);
  if (!checkpoint) {
    return refuse(checkpoint.error().code, checkpoint.error().message);
  }
  auto draft = std::make_unique<DraftPlan>();
  draft->checkpoint = std::make_unique<Checkpoint>(std::move(*checkpoint));
  const auto read = config.speculation.has_head() ? read_head(plan, *draft) : read_model(*draft);
  if (!read) {
    return refuse(read.error().code, fmt::format("'{}': {}", name, read.error().message));
  }
  if (auto checked = check(*draft, plan, name); !checked) {
    return tl::unexpected(checked.error());
  }
  if (!draft->head && draft->spec.max_position < plan.spec.max_position) {
    WR_LOG_WARN(
        "the draft model '{}' was made for {} tokens, the model for {}: drafts beyond the "
        "draft model's limit are rarely right",
        name,
        draft->spec.max_position,
        plan.spec.max_position);
  }
  set_longest_sequence(draft->spec, plan.spec.max_position);
  if (draft->head) {
    draft->head->decoder = draft->spec;
  }
  return draft;
}

}  // namespace

Result<std::unique_ptr<DraftPlan>> read_draft_plan(const ModelPlan& plan) {
  const Speculation& speculation = plan.config.speculation;
  if (!speculation.has_model()) {
    return nullptr;
  }
  if (plan.place.pipeline.size > 1) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--pipeline-parallel-size: {} with a draft model or head "
                            "(--speculative-config) is not supported; 1 is",
                            plan.place.pipeline.size));
  }
  auto draft = speculation.has_files() ? read_drafter(plan) : read_own_head(plan);
  if (!draft) {
    return draft;
  }
  (*draft)->model.divided = speculation.divided;
  const auto divides =
      check_tensor_split((*draft)->spec, (*draft)->place(plan.place.tensor).size, plan.device.kind);
  if (!divides) {
    return fail(divides.error().code,
                fmt::format("--speculative-config: {}; with draft_tensor_parallel_size 1 every "
                            "rank has all of the drafter",
                            divides.error().message));
  }
  return draft;
}

void finish_draft_plan(DraftPlan& draft, const ModelPlan& plan) {
  const auto first = static_cast<size_t>(plan.kv.first_layer.back());
  draft.model.kv = plan.kv;
  draft.model.kv.layers.erase(draft.model.kv.layers.begin(),
                              draft.model.kv.layers.begin() + static_cast<std::ptrdiff_t>(first));
  draft.model.kv.first_layer = {0};
  draft.model.first_layer = static_cast<int32_t>(first);
  draft.model.batch_invariant = plan.runner.batch_invariant;
  draft.decoder = plan.decoder;
  draft.decoder.layers = {};
  draft.decoder.deltas = false;
  draft.decoder.aux_layers = {};
  const int32_t rows = plan.runner.max_num_seqs;
  draft.decoder.max_num_toks = std::max(
      plan.decoder.max_num_toks,
      draft.head ? most_head_toks(rows, plan.runner.max_drafts) : most_draft_model_toks(rows));
}

}  // namespace warprow
