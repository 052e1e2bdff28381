// SPDX-License-Identifier: Apache-2.0
#include "models/pooler.h"

#include "base/check.h"
#include "files/gguf.h"
#include "files/json_file.h"
#include "models/encoder_head.h"
#include "models/sentence_modules.h"
#include "models/tensor_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {

namespace {

double activated(PoolerLayer::Activation activation, double x) {
  constexpr double kRootHalf = 0.70710678118654752;
  switch (activation) {
    case PoolerLayer::Activation::kTanh:
      return std::tanh(x);
    case PoolerLayer::Activation::kGelu:
      return x / 2 * (1 + std::erf(x * kRootHalf));
    case PoolerLayer::Activation::kNone:
      break;
  }
  return x;
}

void layer_norm(const PoolerLayer& layer, std::vector<float>& values) {
  const auto n = static_cast<double>(values.size());
  double mean = 0;
  for (const float v : values) {
    mean += double{v} / n;
  }
  double variance = 0;
  for (const float v : values) {
    variance += (double{v} - mean) * (double{v} - mean) / n;
  }
  const double factor = 1 / std::sqrt(variance + double{layer.norm_eps});
  for (size_t i = 0; i < values.size(); ++i) {
    const double bias = layer.norm_bias.empty() ? 0.0 : double{layer.norm_bias[i]};
    values[i] = static_cast<float>(
        (double{values[i]} - mean) * factor * double{layer.norm_weight[i]} + bias);
  }
}

}  // namespace

void Pooler::apply(std::vector<float>& values) const {
  for (const PoolerLayer& layer : layers) {
    WR_CHECK_EQ(values.size(), static_cast<size_t>(layer.num_inputs));
    std::vector<float> out(static_cast<size_t>(layer.num_outputs));
    for (size_t o = 0; o < out.size(); ++o) {
      const float* weights = layer.weight.data() + o * values.size();
      double sum = layer.bias.empty() ? 0.0 : double{layer.bias[o]};
      for (size_t i = 0; i < values.size(); ++i) {
        sum += double{weights[i]} * double{values[i]};
      }
      out[o] = static_cast<float>(activated(layer.activation, sum));
    }
    if (!layer.norm_weight.empty()) {
      layer_norm(layer, out);
    }
    values = std::move(out);
  }
}

namespace {

using Json = nlohmann::json;

constexpr std::string_view kClassifier = "ForSequenceClassification";

Json member(const Json& object, const char* key) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  return at == object.end() ? Json() : *at;
}

// id2label's texts, or LABEL_i.
std::vector<PoolingLabel> read_labels(const Json& config, int32_t count) {
  const Json names = member(config, "id2label");
  std::vector<PoolingLabel> labels;
  for (int32_t i = 0; i < count; ++i) {
    const Json name = member(names, std::to_string(i).c_str());
    labels.push_back({name.is_string() ? name.get<std::string>() : fmt::format("LABEL_{}", i)});
  }
  return labels;
}

// sentence-transformers' own setting goes before that of transformers.
LabelActivation read_activation(const Json& config, int32_t num_labels) {
  Json name = member(member(config, "sentence_transformers"), "activation_fn");
  if (!name.is_string()) {
    name = member(config, "sbert_ce_default_activation_function");
  }
  if (name.is_string()) {
    return name.get_ref<const std::string&>().ends_with("Identity")  ? LabelActivation::kNone
           : name.get_ref<const std::string&>().ends_with("Softmax") ? LabelActivation::kSoftmax
                                                                     : LabelActivation::kSigmoid;
  }
  const Json problem = member(config, "problem_type");
  if (problem == "regression") {
    return LabelActivation::kNone;
  }
  return num_labels == 1 || problem == "multi_label_classification" ? LabelActivation::kSigmoid
                                                                    : LabelActivation::kSoftmax;
}

// The head of a decoder with ForSequenceClassification: a product with the last token.
Result<void> read_classifier(const Checkpoint& checkpoint,
                             const DecoderSpec& spec,
                             Pooler& pooler) {
  const Result<const TensorSource*> weight = checkpoint.require_values("score.weight");
  if (!weight) {
    return tl::unexpected(weight.error());
  }
  if ((*weight)->cols != spec.hidden_size || (*weight)->rows < 1) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("tensor score.weight is {} x {}, expected rows of {}",
                            (*weight)->rows,
                            (*weight)->cols,
                            spec.hidden_size));
  }
  const auto num_labels = static_cast<int32_t>((*weight)->rows);
  std::vector<int64_t> rows(static_cast<size_t>(num_labels));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  Result<std::vector<float>> values = read_rows(**weight, rows);
  if (!values) {
    return tl::unexpected(values.error());
  }
  PoolerLayer layer{spec.hidden_size, num_labels, *std::move(values), {}};
  if (const TensorSource* bias = checkpoint.find("score.bias"); bias != nullptr) {
    if (bias->rows != 1 || bias->cols != num_labels || !has_values(bias->type)) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("tensor score.bias is no list of {} values", num_labels));
    }
    layer.bias = value_or_throw(read_rows(*bias, {0}));
  }
  pooler.layers.push_back(std::move(layer));
  pooler.facts.width = num_labels;
  return {};
}

// What a classifier's labels are, behind its head.
void read_classes(const Json& config, PoolingFacts& facts) {
  facts.labels = read_labels(config, facts.width);
  facts.activation = read_activation(config, facts.width);
}

// The id of a token of tokenizer.json.
Result<int64_t> token_id(const Json& tokenizer, const std::string& text) {
  const Json vocab = member(member(tokenizer, "model"), "vocab");
  const Json id = member(vocab, text.c_str());
  if (!id.is_number_integer()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--convert classify: the tokenizer has no token '{}'", text));
  }
  return id.get<int64_t>();
}

// The tokens of classifier_from_token, or yes and no.
Result<JudgeTokens> find_judge_tokens(const Json& config, const std::string& dir) {
  const Json tokens = member(config, "classifier_from_token");
  std::vector<std::string> words{"no", "yes"};
  if (tokens.is_array() && tokens.size() == 2 && tokens[0].is_string() && tokens[1].is_string()) {
    words = tokens.get<std::vector<std::string>>();
  } else if (!tokens.is_null()) {
    return fail(ErrorCode::kUnsupported,
                "config.json: classifier_from_token must be a list of two tokens");
  }
  const Result<Json> tokenizer = read_json_file(dir + "/tokenizer.json");
  if (!tokenizer) {
    return tl::unexpected(tokenizer.error());
  }
  const Result<int64_t> no = token_id(*tokenizer, words[0]);
  const Result<int64_t> yes = token_id(*tokenizer, words[1]);
  if (!no || !yes) {
    return tl::unexpected(!no ? no.error() : yes.error());
  }
  return JudgeTokens{*yes, *no};
}

// A reranker that answers yes or no: the probability of one of two tokens beside the other alone is the sigmoid of the
// difference of their logits.
Result<void> read_judge(const Checkpoint& checkpoint,
                        const std::string& dir,
                        const DecoderSpec& spec,
                        Pooler& pooler) {
  if (spec.logits_soft_cap > 0.0F) {
    return fail(ErrorCode::kUnsupported,
                "--convert classify: the model has a soft cap on its logits");
  }
  const Json& config = *checkpoint.config_json();
  const Result<JudgeTokens> tokens =
      pooler.judge ? Result<JudgeTokens>(*pooler.judge) : find_judge_tokens(config, dir);
  const Result<const TensorSource*> head =
      checkpoint.require_values(spec.tied_head ? spec.names.embed : spec.names.head);
  if (!tokens || !head) {
    return tl::unexpected(!tokens ? tokens.error() : head.error());
  }
  const Result<std::vector<float>> yes = read_rows(**head, {tokens->yes});
  const Result<std::vector<float>> no = read_rows(**head, {tokens->no.value_or(tokens->yes)});
  if (!yes || !no) {
    return tl::unexpected(!yes ? yes.error() : no.error());
  }
  PoolerLayer layer{spec.hidden_size, 1, *yes, {}};
  for (size_t i = 0; i < layer.weight.size(); ++i) {
    layer.weight[i] = (layer.weight[i] - (tokens->no ? (*no)[i] : 0.0F)) / spec.logits_divisor;
  }
  pooler.layers.push_back(std::move(layer));
  pooler.facts.width = 1;
  pooler.facts.labels = {{"LABEL_0"}};
  pooler.facts.activation = LabelActivation::kSigmoid;
  if (spec.architecture == "Qwen3ForCausalLM") {
    pooler.facts.pair_form = PairForm::kQwen3Judge;
  }
  return {};
}

// What a GGUF file names as llama.cpp's pooling types.
Result<PoolingMethod> gguf_method(int64_t type) {
  constexpr PoolingMethod kMethods[] = {
      PoolingMethod::kMean, PoolingMethod::kFirst, PoolingMethod::kLast};
  if (type < 1 || type > 3) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("pooling_type {} is not supported (1, 2 and 3 are)", type));
  }
  return kMethods[type - 1];
}

Result<int64_t> gguf_pooling_type(const Checkpoint& checkpoint) {
  const auto name = checkpoint.gguf()->require<std::string_view>("general.architecture");
  if (!name) {
    return tl::unexpected(name.error());
  }
  return checkpoint.gguf()->get_or<int64_t>(std::string(*name) + ".pooling_type", 0);
}

Result<void> read_gguf(const Checkpoint& checkpoint, Pooler& pooler, bool& says_pooling) {
  const Result<int64_t> type = gguf_pooling_type(checkpoint);
  if (!type) {
    return tl::unexpected(type.error());
  }
  says_pooling = *type > 0;
  if (!says_pooling) {
    return {};
  }
  return gguf_method(*type).map([&](PoolingMethod method) { pooler.facts.method = method; });
}

// The lengths that the model was trained to be cut to.
std::vector<int32_t> read_dimensions(const Json& config, int32_t width) {
  std::vector<int32_t> out;
  const Json list = member(config, "matryoshka_dimensions");
  for (const Json& size : list.is_array() ? list : Json::array()) {
    if (size.is_number_integer() && size >= 1 && size <= width) {
      out.push_back(size.get<int32_t>());
    }
  }
  std::ranges::sort(out);
  return out;
}

// A decoder that was trained with attention to both sides is another model with a causal mask.
Result<void> check_causal(const Json& config) {
  if (member(config, "is_causal") == false ||
      member(config, "use_bidirectional_attention") == true) {
    return fail(ErrorCode::kUnsupported,
                "config.json: attention to both sides in a decoder is not supported");
  }
  return {};
}

std::string class_name(const Json& config) {
  const Json list = member(config, "architectures");
  return list.is_array() && !list.empty() && list[0].is_string() ? list[0].get<std::string>() : "";
}

}  // namespace

Result<std::unique_ptr<Pooler>> read_pooler(const Checkpoint& checkpoint,
                                            const std::string& dir,
                                            const DecoderSpec& spec,
                                            const EngineConfig& settings) {
  auto pooler = std::make_unique<Pooler>();
  pooler->facts.width = spec.hidden_size;
  if (spec.encoder) {
    pooler->facts.whole_prompts = true;
    pooler->facts.num_segments = std::max(1, spec.encoder->num_segments);
    pooler->facts.method = PoolingMethod::kMean;
  }
  const bool is_hf = checkpoint.config_json() != nullptr;
  const Json config = is_hf ? *checkpoint.config_json() : Json::object();
  const std::string name = class_name(config);
  const bool has_classes = name.ends_with(kClassifier);
  const bool is_bare = name.ends_with("Model");
  const bool has_no_head = has_classes || is_bare || spec.encoder.has_value();
  bool says_pooling = has_no_head || !member(config, "classifier_from_token").is_null();
  Result<void> read;
  if (settings.runner == "generate") {
    says_pooling = false;
  } else if (!is_hf) {
    read = read_gguf(checkpoint, *pooler, says_pooling);
  } else {
    const Result<bool> modules = read_sentence_modules(dir, *pooler);
    says_pooling = says_pooling || (modules && *modules);
    read = modules ? Result<void>() : tl::unexpected(modules.error());
  }
  if (!read) {
    return tl::unexpected(read.error());
  }
  if (settings.runner != "pooling" && !says_pooling) {
    if (has_no_head) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("--runner: {} has no head to generate with; use pooling", name));
    }
    return nullptr;
  }
  if (auto causal = check_causal(config); !causal && !spec.encoder) {
    return tl::unexpected(causal.error());
  }
  const bool is_judge =
      pooler->judge.has_value() || !member(config, "classifier_from_token").is_null();
  const bool judges =
      !has_classes && (settings.convert == "classify" || (settings.convert == "auto" && is_judge));
  if (judges && spec.encoder) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--convert: classify, but {} has no classes", name));
  }
  if (judges && !is_hf) {
    return fail(ErrorCode::kUnsupported, "--convert classify: GGUF files are not supported");
  }
  pooler->facts.task = has_classes || judges ? PoolingTask::kClassify : PoolingTask::kEmbed;
  if (has_classes && settings.convert == "embed") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("--convert: embed contradicts {}, which has classes", name));
  }
  if (pooler->facts.task == PoolingTask::kEmbed) {
    pooler->facts.dimensions = read_dimensions(config, pooler->facts.width);
    return pooler;
  }
  pooler->layers.clear();
  if (spec.encoder) {
    read = read_encoder_head(checkpoint, spec, *pooler);
    pooler->facts.pair_form = PairForm::kSegments;
  } else {
    pooler->facts.method = PoolingMethod::kLast;
    read = has_classes ? read_classifier(checkpoint, spec, *pooler)
                       : read_judge(checkpoint, dir, spec, *pooler);
  }
  if (!read) {
    return tl::unexpected(read.error());
  }
  if (has_classes) {
    read_classes(config, pooler->facts);
  }
  return pooler;
}

}  // namespace warprow
