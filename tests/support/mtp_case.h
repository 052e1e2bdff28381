// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/eagle_case.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow::test {

// The families whose checkpoints have a layer that predicts further tokens.
enum class MtpFamily {
  kGlm4Moe,    // DeepSeek's layout; experts behind the first layer
  kQwen35,     // Qwen's layout; no experts
  kQwen3Next,  // Qwen's layout; experts
};

// Small models of these families with such a layer, random, as a checkpoint and for the oracle. All layers have attention:
// what a gated delta net does is another test's.
class RandomMtp {
 public:
  explicit RandomMtp(MtpFamily family, uint32_t seed = 11) : family_(family), random_(seed) {
    model_.hidden = kHidden;
    model_.vocab = kVocab;
    model_.eps = 1e-5;
    model_.layers.resize(kLayers);
    model_.embed = matrix("model.embed_tokens", kVocab, kHidden);
    model_.final_norm = norm("model.norm", kHidden);
    model_.head = matrix("lm_head", kVocab, kHidden);
    for (int i = 0; i < kLayers; ++i) {
      add_layer("model.layers." + std::to_string(i) + ".",
                has_experts() && (is_qwen() || i > 0),
                model_.layers[static_cast<size_t>(i)]);
    }
    add_head();
  }

  [[nodiscard]] const OracleModel& model() const { return model_; }
  [[nodiscard]] const OracleHead& head() const { return head_; }
  [[nodiscard]] Bytes weights() const { return writer_.bytes(); }
  [[nodiscard]] bool is_qwen() const { return family_ != MtpFamily::kGlm4Moe; }

  [[nodiscard]] nlohmann::json config() const {
    nlohmann::json json = {{"hidden_act", "silu"},
                           {"hidden_size", kHidden},
                           {"head_dim", kHeadDim},
                           {"intermediate_size", kIntermediate},
                           {"max_position_embeddings", 512},
                           {"num_attention_heads", kHeads},
                           {"num_key_value_heads", 1},
                           {"num_hidden_layers", kLayers},
                           {"rms_norm_eps", model_.eps},
                           {"rope_theta", kTheta},
                           {"partial_rotary_factor", static_cast<double>(rot_dim()) / kHeadDim},
                           {"tie_word_embeddings", false},
                           {"vocab_size", kVocab}};
    if (family_ == MtpFamily::kGlm4Moe) {
      json.update({{"architectures", {"Glm4MoeForCausalLM"}},
                   {"model_type", "glm4_moe"},
                   {"attention_bias", true},
                   {"use_qk_norm", true},
                   {"n_routed_experts", kExperts},
                   {"num_experts_per_tok", kChosen},
                   {"n_shared_experts", 1},
                   {"moe_intermediate_size", kExpertSize},
                   {"routed_scaling_factor", kGlmScale},
                   {"norm_topk_prob", true},
                   {"first_k_dense_replace", 1},
                   {"num_nextn_predict_layers", 1}});
      return json;
    }
    json["layer_types"] = std::vector<std::string>(kLayers, "full_attention");
    json["architectures"] = {has_experts() ? "Qwen3NextForCausalLM" : "Qwen3_5ForCausalLM"};
    json["model_type"] = has_experts() ? "qwen3_next" : "qwen3_5_text";
    if (has_experts()) {
      json.update({{"num_experts", kExperts},
                   {"num_experts_per_tok", kChosen},
                   {"moe_intermediate_size", kExpertSize},
                   {"shared_expert_intermediate_size", kExpertSize},
                   {"norm_topk_prob", true}});
    } else {
      json["mtp_num_hidden_layers"] = 1;
    }
    return json;
  }

 private:
  static constexpr int kHidden = 64;
  static constexpr int kVocab = kHeadTestVocab;
  static constexpr int kLayers = 3;
  static constexpr int kHeads = 2;
  static constexpr int kHeadDim = 64;
  static constexpr int kIntermediate = 64;
  static constexpr int kExperts = 8;
  static constexpr int kChosen = 2;
  static constexpr int kExpertSize = 32;
  static constexpr double kTheta = 10000.0;
  static constexpr double kGlmScale = 1.5;

  [[nodiscard]] bool has_experts() const { return family_ != MtpFamily::kQwen35; }
  [[nodiscard]] int rot_dim() const { return is_qwen() ? kHeadDim / 4 : kHeadDim / 2; }

  std::vector<float> values(int64_t count, float mean, float size) {
    std::normal_distribution<float> normal(mean, size);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) {
      value = normal(random_);
    }
    return out;
  }
  Doubles add(const std::string& name, const std::vector<int64_t>& shape, std::vector<float> all) {
    writer_.add_f32(name, shape, all);
    return {all.begin(), all.end()};
  }
  Doubles matrix(const std::string& name, int64_t rows, int64_t cols) {
    std::vector<float> all = values(rows * cols, 0.0F, 0.25F);
    if (name == "lm_head") {  // answers are mostly of these ids, so that some drafts are right
      for (const int row : {1, 33, 65, 97}) {
        for (int64_t i = 0; i < cols; ++i) {
          all[static_cast<size_t>(row * cols + i)] *= 12;
        }
      }
    }
    return add(name + ".weight", {rows, cols}, std::move(all));
  }
  // Qwen's are stored as differences from one.
  Doubles norm(const std::string& name, int64_t width) {
    Doubles weight = add(name + ".weight", {width}, values(width, is_qwen() ? 0.0F : 1.0F, 0.2F));
    for (double& w : weight) {
      w += is_qwen() ? 1.0 : 0.0;
    }
    return weight;
  }

  void add_attention(const std::string& at, OracleLayer& layer) {
    layer.num_heads = kHeads;
    layer.num_kv_heads = 1;
    layer.head_dim = kHeadDim;
    layer.rot_dim = rot_dim();
    layer.theta = kTheta;
    layer.scale = 0.125;
    const int q_size = kHeads * kHeadDim;
    if (is_qwen()) {  // of each head the rows of its queries, then those of its gates
      const Doubles both = matrix(at + "q_proj", 2 * q_size, kHidden);
      for (int h = 0; h < kHeads; ++h) {
        const auto first = both.begin() + int64_t{2} * h * kHeadDim * kHidden;
        const int64_t half = int64_t{kHeadDim} * kHidden;
        layer.q.insert(layer.q.end(), first, first + half);
        layer.output_gate.insert(layer.output_gate.end(), first + half, first + 2 * half);
      }
    } else {
      layer.q = matrix(at + "q_proj", q_size, kHidden);
      layer.q_bias = add(at + "q_proj.bias", {q_size}, values(q_size, 0, 0.2F));
      layer.k_bias = add(at + "k_proj.bias", {kHeadDim}, values(kHeadDim, 0, 0.2F));
      layer.v_bias = add(at + "v_proj.bias", {kHeadDim}, values(kHeadDim, 0, 0.2F));
    }
    layer.k = matrix(at + "k_proj", kHeadDim, kHidden);
    layer.v = matrix(at + "v_proj", kHeadDim, kHidden);
    layer.o = matrix(at + "o_proj", kHidden, q_size);
    layer.q_norm = norm(at + "q_norm", kHeadDim);
    layer.k_norm = norm(at + "k_norm", kHeadDim);
  }

  // down(silu(gate x) * up x)
  struct Gated {
    Doubles gate, up, down;
    [[nodiscard]] Doubles of(const Doubles& x) const {
      Doubles inner = times(gate, x);
      const Doubles ups = times(up, x);
      for (size_t i = 0; i < inner.size(); ++i) {
        inner[i] = inner[i] / (1.0 + std::exp(-inner[i])) * ups[i];
      }
      return times(down, inner);
    }
    static Doubles times(const Doubles& w, const Doubles& x) {
      Doubles y(w.size() / x.size());
      for (size_t j = 0; j < y.size(); ++j) {
        y[j] = std::inner_product(
            x.begin(), x.end(), w.begin() + static_cast<int64_t>(j * x.size()), 0.0);
      }
      return y;
    }
  };
  Gated gated(const std::string& at, int inner) {
    return {matrix(at + "gate_proj", inner, kHidden),
            matrix(at + "up_proj", inner, kHidden),
            matrix(at + "down_proj", kHidden, inner)};
  }

  // Of GLM the sigmoids of the router's logits, of Qwen their softmax; the weights of the chosen ones have a sum of one.
  struct Experts {
    bool sigmoid = false;
    Doubles router, choice_bias, shared_gate;
    std::vector<Gated> experts;
    Gated shared;

    [[nodiscard]] Doubles of(const Doubles& x) const {
      Doubles scores = Gated::times(router, x);
      for (double& score : scores) {
        score = sigmoid ? 1.0 / (1.0 + std::exp(-score)) : std::exp(score);
      }
      std::vector<size_t> order(scores.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::ranges::sort(order, std::ranges::greater(), [&](size_t e) {
        return scores[e] + (sigmoid ? choice_bias[e] : 0.0);
      });
      double sum = 0;
      for (size_t i = 0; i < kChosen; ++i) {
        sum += scores[order[i]];
      }
      Doubles out = shared.of(x);
      for (double& value : out) {
        value *= sigmoid ? 1.0 : 1.0 / (1.0 + std::exp(-Gated::times(shared_gate, x).front()));
      }
      for (size_t i = 0; i < kChosen; ++i) {
        const Doubles each = experts[order[i]].of(x);
        for (size_t j = 0; j < out.size(); ++j) {
          out[j] += each[j] * scores[order[i]] / sum * (sigmoid ? kGlmScale : 1.0);
        }
      }
      return out;
    }
  };

  void add_experts(const std::string& at, OracleLayer& layer) {
    Experts mixture;
    mixture.sigmoid = !is_qwen();
    mixture.router = matrix(at + "gate", kExperts, kHidden);
    if (!is_qwen()) {
      mixture.choice_bias =
          add(at + "gate.e_score_correction_bias", {kExperts}, values(kExperts, 0, 0.2F));
    }
    for (int e = 0; e < kExperts; ++e) {
      mixture.experts.push_back(gated(at + "experts." + std::to_string(e) + ".", kExpertSize));
    }
    mixture.shared = gated(at + (is_qwen() ? "shared_expert." : "shared_experts."), kExpertSize);
    if (is_qwen()) {
      mixture.shared_gate = matrix(at + "shared_expert_gate", 1, kHidden);
    }
    layer.experts = [mixture](const Doubles& x) { return mixture.of(x); };
  }

  void add_layer(const std::string& at, bool experts, OracleLayer& layer) {
    layer.input_norm = norm(at + "input_layernorm", kHidden);
    add_attention(at + "self_attn.", layer);
    layer.ffn_norm = norm(at + "post_attention_layernorm", kHidden);
    if (experts) {
      add_experts(at + "mlp.", layer);
      return;
    }
    Gated dense = gated(at + "mlp.", kIntermediate);
    layer.gate = std::move(dense.gate);
    layer.up = std::move(dense.up);
    layer.down = std::move(dense.down);
  }

  void add_head() {
    head_.format = HeadFormat::kMtp;
    if (is_qwen()) {
      head_.normed_states = true;
      head_.fc = matrix("mtp.fc", kHidden, 2 * kHidden);
      head_.embed_norm = norm("mtp.pre_fc_norm_embedding", kHidden);
      head_.hidden_norm = norm("mtp.pre_fc_norm_hidden", kHidden);
      head_.final_norm = norm("mtp.norm", kHidden);
      add_layer("mtp.layers.0.", has_experts(), head_.layer);
      return;
    }
    const std::string at = "model.layers." + std::to_string(kLayers) + ".";
    head_.hides_first = true;
    head_.fc = matrix(at + "eh_proj", kHidden, 2 * kHidden);
    head_.embed_norm = norm(at + "enorm", kHidden);
    head_.hidden_norm = norm(at + "hnorm", kHidden);
    head_.final_norm = norm(at + "shared_head.norm", kHidden);
    add_layer(at, true, head_.layer);
  }

  MtpFamily family_;
  std::mt19937 random_;
  OracleModel model_;
  OracleHead head_;
  SafetensorsWriter writer_;
};

// The same with its files.
struct MtpFiles {
  RandomMtp random;
  TempDir dir;

  explicit MtpFiles(MtpFamily family) : random(family) {
    dir.write("config.json", random.config().dump());
    dir.write("model.safetensors", random.weights());
  }
  [[nodiscard]] std::string path() const { return dir.path().string(); }
};

inline std::string mtp_config(int32_t num_drafts, bool adaptive = false) {
  return R"({"method": "mtp", "num_speculative_tokens": )" + std::to_string(num_drafts) +
         R"(, "adaptive": )" + (adaptive ? "true}" : "false}");
}

// Without drafts.
inline RigOptions mtp_target_options(const MtpFiles& files, const std::string& device = "cpu") {
  RigOptions options = head_target_options(device);
  options.config.model = files.path();
  return options;
}

// With drafts, of which the host is told in every step.
inline RigOptions mtp_options(const MtpFiles& files,
                              int32_t num_drafts,
                              const std::string& device = "cpu") {
  RigOptions options = mtp_target_options(files, device);
  options.config.speculative_config = mtp_config(num_drafts);
  options.edit_step = want_drafts;
  return options;
}

}  // namespace warprow::test
