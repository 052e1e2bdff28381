// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/decoder_oracle.h"
#include "tests/support/safetensors_writer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow::test {

// The ways in which heads are published.
enum class HeadFormat {
  kEagle,        // fc over [embedding; hidden state], with the model's embedding and head
  kEagle3,       // the authors' names: midlayer.*
  kSpeculators,  // the package speculators: its config around the layer's, layers.0.*
  kMtp,          // a layer of the model's own checkpoint
};

// A head's numbers. Matrices are [out, in].
struct OracleHead {
  HeadFormat format = HeadFormat::kEagle3;
  std::vector<int> entered;  // EAGLE-3: layers of the model in front of which states are taken
  bool norm_before_residual = false;
  bool normed_states = false;  // MTP: behind a draft, the state is the normed stream
  bool hides_first = false;    // MTP: zeros for the embedding at position 0
  Doubles embed_norm;          // MTP
  Doubles states_norm;         // EAGLE-3: in front of fc; empty: there is none
  Doubles fc, fc_bias, hidden_norm, final_norm, head;
  Doubles embed;         // empty: the model's
  std::vector<int> ids;  // of the model's vocabulary by the head's; empty: the same
  OracleLayer layer;
};

// A head in plain loops of doubles, written from the papers (arXiv 2401.15077, 2503.01840) and the rules that their authors
// publish.
class EagleOracle : public DecoderOracle {
 public:
  // tokens: a prompt and its answer.
  EagleOracle(const OracleModel& target, const OracleHead& head, std::vector<int32_t> tokens)
      : DecoderOracle(target), target_(target), head_(head), tokens_(std::move(tokens)) {
    states_ = model_states(tokens_);
    for (size_t t = 0; t + 1 < tokens_.size(); ++t) {
      add_keys(enter(tokens_[t + 1], states_[t], t).input, cache_);
    }
  }

  struct Drafts {
    std::vector<int32_t> ids;
    double least_gap = 1e9;  // between the largest logits of a draft
  };

  // The drafts behind the first num_known tokens, of which the model has computed all but the last. Keys and values of all
  // positions come from the model's states, those behind them from the head's own.
  [[nodiscard]] Drafts drafts(size_t num_known, int count) const {
    Cache cache;
    const auto first = static_cast<int64_t>(num_known) - 2;
    cache.k.assign(cache_.k.begin(), cache_.k.begin() + first);
    cache.v.assign(cache_.v.begin(), cache_.v.begin() + first);
    Doubles state = states_[num_known - 2];
    int32_t next = tokens_[num_known - 1];
    Drafts out;
    for (int made = 0; made < count; ++made) {
      state = forward(next, state, cache);
      const Doubles last = is_eagle() ? state : normed(state, head_.final_norm);
      const Doubles logits = times(reads_last() ? target_.head : head_.head, last);
      state = head_.normed_states ? last : state;
      const auto best = std::ranges::max_element(logits);
      const auto at = static_cast<size_t>(best - logits.begin());
      for (size_t i = 0; i < logits.size(); ++i) {
        out.least_gap = i == at ? out.least_gap : std::min(out.least_gap, *best - logits[i]);
      }
      next = head_.ids.empty() ? static_cast<int32_t>(at) : head_.ids[at];
      out.ids.push_back(next);
    }
    return out;
  }

 private:
  // What a position puts into the layer: the residual stream, and the input of q, k and v.
  struct Entry {
    Doubles stream;
    Doubles input;
  };
  // By position.
  struct Cache {
    std::vector<Doubles> k;
    std::vector<Doubles> v;
  };

  [[nodiscard]] bool is_eagle() const { return head_.format == HeadFormat::kEagle; }
  [[nodiscard]] bool is_mtp() const { return head_.format == HeadFormat::kMtp; }
  // Whether it takes the states behind the model's final norm, and lends its head.
  [[nodiscard]] bool reads_last() const { return is_eagle() || is_mtp(); }

  // EAGLE-3's are those behind fc. Behind drafts, states are the head's own, which do not go through it.
  [[nodiscard]] std::vector<Doubles> model_states(const std::vector<int32_t>& ids) const {
    const std::vector<std::vector<Doubles>> all = streams(ids);
    std::vector<Doubles> states;
    for (size_t t = 0; t < ids.size(); ++t) {
      if (reads_last()) {
        states.push_back(normed(all.back()[t], target_.final_norm));
        continue;
      }
      Doubles joined;
      for (const int layer : head_.entered) {
        joined = with(joined, all[static_cast<size_t>(layer)][t]);
      }
      states.push_back(
          times(head_.fc, head_.states_norm.empty() ? joined : normed(joined, head_.states_norm)));
    }
    return states;
  }

  static Doubles with(Doubles a, const Doubles& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  [[nodiscard]] Doubles embedding(int32_t id) const {
    const Doubles& table = head_.embed.empty() ? target_.embed : head_.embed;
    const auto first = table.begin() + int64_t{id} * target_.hidden;
    return {first, first + target_.hidden};
  }

  [[nodiscard]] Entry enter(int32_t next, const Doubles& state, size_t position) const {
    Doubles embedded = embedding(next);
    if (is_mtp()) {
      if (head_.hides_first && position == 0) {
        std::ranges::fill(embedded, 0.0);
      }
      const Doubles row = times(
          head_.fc, with(normed(embedded, head_.embed_norm), normed(state, head_.hidden_norm)));
      return {row, normed(row, head_.layer.input_norm)};
    }
    if (is_eagle()) {
      Doubles row = times(head_.fc, with(embedded, state));
      for (size_t i = 0; i < head_.fc_bias.size(); ++i) {
        row[i] += head_.fc_bias[i];
      }
      return {row, row};
    }
    const Doubles normal = normed(state, head_.hidden_norm);
    return {head_.norm_before_residual ? normal : state,
            with(normed(embedded, head_.layer.input_norm), normal)};
  }

  void add_keys(const Doubles& input, Cache& cache) const {
    const auto position = static_cast<int>(cache.k.size());
    const OracleLayer& layer = head_.layer;
    cache.k.push_back(
        placed(layer, projected(layer.k, layer.k_bias, input), layer.k_norm, position));
    cache.v.push_back(projected(layer.v, layer.v_bias, input));
  }

  // The residual stream behind the layer at the cache's next position.
  [[nodiscard]] Doubles forward(int32_t next, const Doubles& state, Cache& cache) const {
    const OracleLayer& layer = head_.layer;
    const auto position = static_cast<int>(cache.k.size());
    Entry entry = enter(next, state, cache.k.size());
    add_keys(entry.input, cache);
    const Doubles q =
        placed(layer, projected(layer.q, layer.q_bias, entry.input), layer.q_norm, position);
    Doubles seen = attend_one(layer, q, cache.k, cache.v, position);
    open_gate(layer, entry.input, seen);
    join(layer, {}, times(layer.o, seen), entry.stream);
    std::vector<Doubles> rows = {entry.stream};
    feed(layer, rows);
    return rows.front();
  }

  const OracleModel& target_;
  const OracleHead& head_;
  std::vector<int32_t> tokens_;
  std::vector<Doubles> states_;
  Cache cache_;
};

// Draws a head for a model, for the oracle and as a checkpoint.
class RandomHead {
 public:
  // draft_vocab: ids of the head, spread over the model's; 0: all of the model's. own_embedding: EAGLE-3's.
  RandomHead(const OracleModel& target,
             HeadFormat format,
             uint32_t seed,
             int draft_vocab = 0,
             bool own_embedding = false)
      : target_(target), random_(seed) {
    head_.format = format;
    OracleLayer& layer = head_.layer;
    layer.num_heads = target.layers.front().num_heads;
    layer.num_kv_heads = 1;
    layer.head_dim = layer.rot_dim = 64;
    layer.theta = 5000;
    layer.scale = 0.125;
    layer.intermediate = 64;
    const int hidden = target.hidden;
    const bool eagle3 = format != HeadFormat::kEagle;
    const std::string at = format == HeadFormat::kEagle3 ? "midlayer." : "layers.0.";
    if (eagle3) {
      const auto layers = static_cast<int>(target.layers.size());
      head_.entered = {1, layers / 2, layers};
      head_.norm_before_residual = format == HeadFormat::kSpeculators;
      layer.input_norm = norm(at + "input_layernorm", hidden);
      head_.hidden_norm = norm(at + "hidden_norm", hidden);
      head_.final_norm = norm("norm", hidden);
      const int vocab = draft_vocab > 0 ? draft_vocab : target.vocab;
      head_.head = matrix("lm_head", vocab, hidden);
      if (draft_vocab > 0) {
        add_ids(draft_vocab);
      }
      if (own_embedding) {
        head_.embed = matrix("embed_tokens", target.vocab, hidden);
      }
    } else {
      head_.fc_bias = draw("fc.bias", {hidden}, 0, 0.25F);
    }
    head_.fc = matrix("fc", hidden, (eagle3 ? 3 : 2) * hidden);
    const int inputs = eagle3 ? 2 * hidden : hidden;
    const int q_size = layer.num_heads * layer.head_dim;
    const int kv_size = layer.num_kv_heads * layer.head_dim;
    layer.q = matrix(at + "self_attn.q_proj", q_size, inputs);
    layer.k = matrix(at + "self_attn.k_proj", kv_size, inputs);
    layer.v = matrix(at + "self_attn.v_proj", kv_size, inputs);
    layer.o = matrix(at + "self_attn.o_proj", hidden, q_size);
    layer.ffn_norm = norm(at + "post_attention_layernorm", hidden);
    layer.gate = matrix(at + "mlp.gate_proj", layer.intermediate, hidden);
    layer.up = matrix(at + "mlp.up_proj", layer.intermediate, hidden);
    layer.down = matrix(at + "mlp.down_proj", hidden, layer.intermediate);
  }

  [[nodiscard]] const OracleHead& head() const { return head_; }
  [[nodiscard]] Bytes weights() const { return writer_.bytes(); }

  // Adds a norm in front of fc.
  void add_states_norm() { head_.states_norm = norm("input_norm", 3 * target_.hidden); }

  // Adds scales of an 8-bit KV cache, which the oracle does not know.
  void add_kv_scales(float scale) {
    const std::string at = head_.format == HeadFormat::kEagle3 ? "midlayer." : "layers.0.";
    for (const char* name : {"self_attn.k_scale", "self_attn.v_scale"}) {
      writer_.add_f32(at + name, {1}, std::vector<float>{scale});
    }
  }

  [[nodiscard]] nlohmann::json config() const {
    const OracleLayer& layer = head_.layer;
    nlohmann::json json = {{"architectures", {"LlamaForCausalLM"}},
                           {"model_type", "llama"},
                           {"hidden_act", "silu"},
                           {"hidden_size", target_.hidden},
                           {"head_dim", layer.head_dim},
                           {"intermediate_size", layer.intermediate},
                           {"max_position_embeddings", 2048},
                           {"num_attention_heads", layer.num_heads},
                           {"num_key_value_heads", layer.num_kv_heads},
                           {"num_hidden_layers", 1},
                           {"rms_norm_eps", target_.eps},
                           {"rope_theta", layer.theta},
                           {"vocab_size", target_.vocab}};
    if (head_.format == HeadFormat::kEagle) {
      return json;
    }
    const auto vocab = static_cast<int64_t>(head_.head.size()) / target_.hidden;
    if (head_.format == HeadFormat::kEagle3) {
      json["architectures"] = {"LlamaForCausalLMEagle3"};
      json["draft_vocab_size"] = vocab;
      json["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", head_.entered}};
      if (!head_.states_norm.empty()) {
        json["norm_before_fc"] = true;
      }
      return json;
    }
    return {
        {"architectures", {"Eagle3Speculator"}},
        {"speculators_model_type", "eagle3"},
        {"speculators_version", "0.1.0"},
        {"draft_vocab_size", vocab},
        {"target_hidden_size", nullptr},
        {"norm_before_residual", head_.norm_before_residual},
        {"eagle_aux_hidden_state_layer_ids", head_.entered},
        {"transformer_layer_config", json},
        {"speculators_config",
         {{"algorithm", "eagle3"},
          {"default_proposal_method", "greedy"},
          {"proposal_methods",
           {{{"proposal_type", "greedy"}, {"speculative_tokens", 5}, {"accept_tolerance", 0}}}},
          {"verifier", {{"name_or_path", "a/model"}, {"architectures", {"LlamaForCausalLM"}}}}}}};
  }

 private:
  Doubles draw(const std::string& name, const std::vector<int64_t>& shape, float mean, float size) {
    std::normal_distribution<float> normal(mean, size);
    int64_t count = 1;
    for (const int64_t n : shape) {
      count *= n;
    }
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      value = normal(random_);
    }
    writer_.add_f32(name, shape, values);
    return {values.begin(), values.end()};
  }
  Doubles matrix(const std::string& name, int64_t rows, int64_t cols) {
    // EAGLE feeds its states back without a norm: larger numbers would grow beyond what exp takes.
    return draw(
        name + ".weight", {rows, cols}, 0, head_.format == HeadFormat::kEagle ? 0.08F : 0.25F);
  }
  Doubles norm(const std::string& name, int64_t width) {
    return draw(name + ".weight", {width}, 1, 0.2F);
  }

  void add_ids(int draft_vocab) {
    Bytes offsets;
    Bytes used;
    for (int id = 0; id < draft_vocab; ++id) {
      head_.ids.push_back(id * target_.vocab / draft_vocab + 1);
      put(offsets, int64_t{head_.ids.back() - id});
    }
    for (int id = 0; id < target_.vocab; ++id) {
      put(used, static_cast<uint8_t>(std::ranges::count(head_.ids, id)));
    }
    writer_.add("d2t", "I64", {draft_vocab}, offsets);
    writer_.add("t2d", "BOOL", {target_.vocab}, used);
  }

  const OracleModel& target_;
  std::mt19937 random_;
  OracleHead head_;
  SafetensorsWriter writer_;
};

}  // namespace warprow::test
