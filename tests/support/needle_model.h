// SPDX-License-Identifier: Apache-2.0
// A constructed model that finds a needle: one token among tens of thousands, named by the prompt's last token.
#pragma once

#include "tests/support/model_rig.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"
#include "wire/token_lists.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow::test {

// One layer of one head, of at least 16 elements. Of the ids 0 to 31 all are hay. A needle 32 + 16 k + j is of kind k and has the answer j. The id
// 96 + k asks for the needle of kind k: its query meets the keys of that kind alone, with a score that is kGap above
// the mean of hay's. The value of a needle is its answer j, and the logit of id j is the weight of that value. So the
// logit of the right answer is kLogit times the attention that the needle gets.
//
// Keys lie in elements of the head that rope turns by less than a thousandth in 2^15 tokens.
class NeedleModel {
 public:
  static constexpr int32_t kKinds = 4;
  static constexpr int32_t kAnswers = 16;
  static constexpr double kGap = 12.7;
  static constexpr double kHayDeviation = 0.5;  // of hay's scores
  static constexpr float kLogit = 20.0F;

  explicit NeedleModel(int32_t head_dim) : dim_(head_dim) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    std::vector<float> embed(kVocab * kHidden);
    for (int32_t id = 0; id < kVocab; ++id) {
      float* row = &embed[static_cast<size_t>(id * kHidden)];
      if (id < 32) {
        row[id] = 1.0F;  // hay
      } else if (id < 96) {
        row[kOfKinds + (id - 32) / kAnswers] = std::sqrt(0.5F);
        row[kOfAnswers + (id - 32) % kAnswers] = std::sqrt(0.5F);
      } else {
        row[kOfQuestions + (id - 96) % kKinds] = 1.0F;
      }
    }
    // Rows of unit length are sqrt(kHidden) times as long behind the norm.
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(kHidden)));
    std::vector<float> q(static_cast<size_t>(dim_ * kHidden));
    std::vector<float> k(q.size());
    std::vector<float> v(q.size());
    std::vector<float> o(q.size());
    for (int32_t kind = 0; kind < kKinds; ++kind) {
      // The last two of each half of the head.
      const int32_t element = kind < 2 ? dim_ / 2 - 2 + kind : dim_ - 4 + kind;
      // A score is the product by the root of the head's size.
      q[at(element, kOfQuestions + kind)] = 2.0F * std::sqrt(static_cast<float>(dim_)) / root;
      k[at(element, kOfKinds + kind)] = static_cast<float>(kGap / 2.0 * std::sqrt(2.0)) / root;
      for (int32_t hay = 0; hay < 32; ++hay) {
        k[at(element, hay)] = static_cast<float>(kHayDeviation / 2.0) * normal(random) / root;
      }
    }
    std::vector<float> head(kVocab * kHidden);
    for (int32_t answer = 0; answer < kAnswers; ++answer) {
      v[at(answer, kOfAnswers + answer)] = std::sqrt(2.0F) / root;
      o[static_cast<size_t>((kOfAnswers + answer) * dim_ + answer)] = 1.0F;
      head[at(answer, kOfAnswers + answer)] = 1.0F;
    }
    for (float& h : head) {
      h *= kLogit / root;
    }
    const std::vector<float> ones(kHidden, 1.0F);
    const std::vector<float> none(kHidden * kHidden);
    SafetensorsWriter writer;
    const std::string layer = "model.layers.0.";
    writer.add_f32("model.embed_tokens.weight", {kVocab, kHidden}, embed)
        .add_f32("lm_head.weight", {kVocab, kHidden}, head)
        .add_f32("model.norm.weight", {kHidden}, ones)
        .add_f32(layer + "input_layernorm.weight", {kHidden}, ones)
        .add_f32(layer + "post_attention_layernorm.weight", {kHidden}, ones)
        .add_f32(layer + "self_attn.q_proj.weight", {dim_, kHidden}, q)
        .add_f32(layer + "self_attn.k_proj.weight", {dim_, kHidden}, k)
        .add_f32(layer + "self_attn.v_proj.weight", {dim_, kHidden}, v)
        .add_f32(layer + "self_attn.o_proj.weight", {kHidden, dim_}, o);
    for (const char* matrix : {"gate_proj", "up_proj", "down_proj"}) {
      writer.add_f32(layer + "mlp." + matrix + ".weight", {kHidden, kHidden}, none);
    }
    dir_.write("model.safetensors", writer.bytes());
    dir_.write("config.json",
               nlohmann::json{{"architectures", {"LlamaForCausalLM"}},
                              {"model_type", "llama"},
                              {"hidden_act", "silu"},
                              {"hidden_size", kHidden},
                              {"intermediate_size", kHidden},
                              {"num_hidden_layers", 1},
                              {"num_attention_heads", 1},
                              {"num_key_value_heads", 1},
                              {"head_dim", dim_},
                              {"vocab_size", kVocab},
                              {"max_position_embeddings", 40000},
                              {"rms_norm_eps", 1e-9},
                              {"rope_theta", 1e12},
                              {"tie_word_embeddings", false}}
                   .dump());
  }

  struct Answer {
    TokenId wanted = 0;
    TokenId token = 0;     // of the largest logit
    double attention = 0;  // that the needle got, by the answer's logit
  };
  // Asks for each kind of needle in num_toks tokens of hay, with needles in the first, second, third and last part. The
  // question is asked num_questions times: each time but the last the request's token is the question again, whatever the
  // logits say. So an n-gram drafts it, and several questions are queries of one step.
  [[nodiscard]] std::vector<Answer> ask(int32_t num_toks,
                                        RigOptions options,
                                        int32_t num_questions = 1) const {
    options.config.model = dir_.path().string();
    options.config.max_model_len = num_toks + 8 + num_questions;
    options.config.enable_prefix_caching = true;
    options.config.max_num_batched_tokens = 4096;
    options.config.max_num_seqs = 2;
    options.config.kv_cache_memory_bytes = int64_t{64} << 20;
    options.config.logprobs_mode = "raw_logits";
    ModelRig rig(options);
    std::mt19937 random(11);
    std::vector<TokenId> hay(static_cast<size_t>(num_toks));
    std::generate(hay.begin(), hay.end(), [&] { return static_cast<TokenId>(random() % 32); });
    std::vector<Answer> answers;
    for (int32_t kind = 0; kind < kKinds; ++kind) {
      const int32_t answer = answer_of(kind);
      const double depth[] = {0.0, 0.31, 0.7, 0.999};
      hay[static_cast<size_t>(depth[kind] * num_toks)] = 32 + kAnswers * kind + answer;
    }
    for (int32_t kind = 0; kind < kKinds; ++kind) {
      Request request;
      request.id = static_cast<uint64_t>(kind) + 1;
      request.prompt = hay;
      request.prompt.push_back(96 + kind);
      request.max_tokens = num_questions;
      request.params.num_logprobs = 2;
      if (num_questions > 1) {
        TokenLists lists;
        lists.biases.emplace_back(96 + kind, 100.0F);
        request.token_lists = pack_token_lists(lists);
        request.params.flags |= SamplingParams::kHasTokenLists;
      }
      rig.add(request);
      for (const RigResult::Top& top : rig.run().at(request.id).top) {
        answers.push_back(answer_in(top, answer_of(kind)));
      }
    }
    EXPECT_EQ(std::ssize(answers), int64_t{kKinds} * num_questions);
    EXPECT_GT(rig.scheduler().stats().num_prefix_hit_tokens, 3 * (num_toks - 64));
    if (num_questions > 1) {
      EXPECT_GT(rig.scheduler().stats().num_accepted_tokens, 0);
    }
    return answers;
  }
  // Bounds of the attention that a needle gets where the elements of keys have this relative error at most: its score is
  // off by that much. Hay's scores are many, so their errors average out; 0.03 is for them and for the mean of hay.
  static void expect_found(const std::vector<Answer>& answers, int32_t num_toks, double error) {
    const auto attention = [&](double score) {
      const double hay = num_toks * std::exp(kHayDeviation * kHayDeviation / 2.0);
      return std::exp(score) / (std::exp(score) + hay);
    };
    for (const Answer& answer : answers) {
      EXPECT_EQ(answer.token, answer.wanted);
      EXPECT_GE(answer.attention, attention(kGap * (1.0 - error)) - 0.03);
      EXPECT_LE(answer.attention, attention(kGap * (1.0 + error)) + 0.03);
    }
  }

 private:
  static TokenId answer_of(int32_t kind) { return (5 * kind + 3) % kAnswers; }
  static Answer answer_in(const RigResult::Top& top, TokenId wanted) {
    Answer got{wanted};
    got.token = std::ranges::max_element(top, {}, &RigResult::Top::value_type::second)->first;
    for (const auto& [id, logit] : top) {
      // The residual has the question, of unit length, and the value: the norm divides by the length of both.
      if (id == wanted) {
        const double share = static_cast<double>(logit) / static_cast<double>(kLogit);
        got.attention = share / std::sqrt(1.0 - share * share);
      }
    }
    return got;
  }

  static constexpr int32_t kHidden = 64;
  static constexpr int32_t kVocab = 100;
  static constexpr int32_t kOfKinds = 32;  // where the features of an embedding begin
  static constexpr int32_t kOfQuestions = 36;
  static constexpr int32_t kOfAnswers = 40;
  static size_t at(int32_t row, int32_t col) { return static_cast<size_t>(row * kHidden + col); }

  int32_t dim_;
  TempDir dir_;
};

}  // namespace warprow::test
