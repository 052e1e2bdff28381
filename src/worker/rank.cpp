// SPDX-License-Identifier: Apache-2.0
#include "worker/rank.h"

#include "base/check.h"
#include "layers/parameter_loader.h"
#include "models/decoder.h"
#include "models/encoder.h"
#include "runner/model_runner.h"

namespace warprow {
namespace {

// The runner class for what this rank does in steps. There is one today.
std::unique_ptr<Runner> make_runner(const ModelPlan& plan,
                                    Device& device,
                                    Stream& stream,
                                    const Rank& rank,
                                    RunnerArenas arenas,
                                    const RankComms& comms) {
  RunnerOptions options = plan.runner;
  DraftModel draft;
  if (plan.draft != nullptr) {
    draft = plan.draft->model;
    draft.model = rank.drafter.model.get();
    draft.head = rank.drafter.head.get();
    options.features.draft_model = &draft;
  }
  switch (plan.stage) {
    case Stage::kGenerate:
      return std::make_unique<ModelRunner>(device,
                                           stream,
                                           *rank.model,
                                           plan.kv,
                                           arenas,
                                           options,
                                           RankGroup{plan.place.tensor, comms.tensor},
                                           RankGroup{plan.place.pipeline, comms.pipeline});
  }
  WR_CHECK(false, "a stage without a runner");
  return nullptr;
}

// Of a model with an 8-bit KV cache; else none.
std::vector<LayerKvScales> kv_scales_of(const ModelPlan& plan,
                                        const Checkpoint& checkpoint,
                                        const DecoderSpec& spec) {
  if (plan.config.kv_cache_dtype == "auto") {
    return {};
  }
  return value_or_throw(read_kv_scales(checkpoint, spec));
}

// Inputs that share a scale in an encoder's matrices of int8. Its time is that of products, and a scale for 32 of them takes a
// quarter of it. What a generated token costs is reading the weights, and a decoder's activations have larger outliers.
constexpr int32_t kEncoderGroup = 128;

}  // namespace

std::unique_ptr<Model> load_model(const ModelPlan& plan,
                                  Stream& stream,
                                  Arena& weights,
                                  Arena& workspace,
                                  const RankComms& comms) {
  ParameterLoader::Quantisation quantisation;
  if (plan.config.quantization != "none") {
    quantisation.rounds_to =
        plan.config.quantization == "fp8" ? QuantNumber::kF8 : QuantNumber::kQ8;
    if (plan.spec.encoder) {
      quantisation.group = kEncoderGroup;
    }
  }
  quantisation.rounds_inputs = plan.config.fp8_activations == "auto";
  quantisation.exact = plan.decoder.linear.act == ActFormat::kF32;
  ParameterLoader loader(*plan.checkpoint,
                         stream,
                         weights,
                         plan.load_format(),
                         plan.decoder.act_dtype,
                         {},
                         quantisation);
  DecoderOptions options = plan.decoder;
  options.tensor = {plan.place.tensor, comms.tensor};
  options.kv_scales = kv_scales_of(plan, *plan.checkpoint, plan.spec);
  std::unique_ptr<Model> model;
  if (plan.spec.encoder) {
    model = std::make_unique<Encoder>(plan.spec, plan.kv, options, loader, workspace);
  } else {
    model = std::make_unique<Decoder>(plan.spec, plan.kv, options, loader, workspace);
  }
  if (!stream.discards()) {
    loader.finish();
  }
  return model;
}

Drafter load_drafter(const ModelPlan& plan,
                     Model& model,
                     Stream& stream,
                     Arena& weights,
                     Arena& workspace,
                     const RankComms& comms) {
  Drafter drafter;
  if (plan.draft == nullptr) {
    return drafter;
  }
  const DraftPlan& draft = *plan.draft;
  const Checkpoint& checkpoint = draft.checkpoint ? *draft.checkpoint : *plan.checkpoint;
  ParameterLoader loader(checkpoint, stream, weights, plan.load_format(), draft.decoder.act_dtype);
  const KvPlan& kv = draft.model.kv;
  DecoderOptions options = draft.decoder;
  options.kv_scales = kv_scales_of(plan, checkpoint, draft.spec);
  if (draft.model.divided) {
    options.tensor = {plan.place.tensor, comms.tensor};
  }
  if (draft.head) {
    drafter.head = std::make_unique<EagleHead>(
        *draft.head, draft.head_ids, kv, options, model, loader, workspace);
  } else {
    drafter.model = std::make_unique<Decoder>(draft.spec, kv, options, loader, workspace);
  }
  if (!stream.discards()) {
    loader.finish();
  }
  return drafter;
}

Rank build_rank(const ModelPlan& plan,
                Device& device,
                Stream& stream,
                const RankBytes& bytes,
                const RankComms& comms) {
  Rank rank;
  rank.weights = device.make_arena(ArenaPurpose::kWeights, bytes.weights);
  rank.state = device.make_arena(ArenaPurpose::kState, bytes.state);
  rank.workspace = device.make_arena(ArenaPurpose::kWorkspace, bytes.workspace);
  rank.model = load_model(plan, stream, rank.weights, rank.workspace, comms);
  const size_t model_bytes = rank.weights.used();
  rank.drafter = load_drafter(plan, *rank.model, stream, rank.weights, rank.workspace, comms);
  rank.drafter_bytes = rank.weights.used() - model_bytes;
  rank.runner = make_runner(plan, device, stream, rank, {&rank.state, &rank.workspace}, comms);
  return rank;
}

void give_kv_cache(Rank& rank, const ModelPlan& plan, Device& device) {
  const auto bytes = static_cast<size_t>(KvCache::planned_bytes(plan.kv_cache));
  rank.kv_cache = std::make_unique<KvCache>(
      device.make_arena(ArenaPurpose::kKvCache, bytes), plan.kv_cache, plan.kv);
  rank.runner->bind_kv_cache(rank.kv_cache.get());
}

void zero_kv_cache(Stream& stream, KvCache& cache) {
  stream.synchronize();
  if (stream.device().facts().zeroed_memory) {
    cache.set_resident(false);  // it becomes resident again as zeros
    cache.set_resident(true);
    return;
  }
  stream.fill(cache.arena().base(), 0, cache.arena().capacity());
  stream.synchronize();
}

}  // namespace warprow
