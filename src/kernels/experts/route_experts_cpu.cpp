// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/route_experts.h"

#include "base/check.h"
#include "device/cpu/cpu_stream.h"
#include "kernels/experts/expert_lists_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace warprow::cpu {
namespace {

constexpr int32_t kMaxExperts = 1024;
constexpr int32_t kMaxChosen = 32;

// The chosen experts of a row, by falling logit or score.
struct Choice {
  float logit[kMaxChosen];
  int32_t expert[kMaxChosen];
};

// An expert goes behind those with an equal logit, so that the lower one comes first. At most kMaxChosen are chosen.
Choice choose(const float* logits, int32_t num_experts, int32_t num_chosen) {
  Choice best;
  int32_t count = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    if (count == num_chosen && !(logits[e] > best.logit[count - 1])) {
      continue;
    }
    int32_t at = count < num_chosen ? count++ : count - 1;
    for (; at > 0 && logits[e] > best.logit[at - 1]; --at) {
      best.logit[at] = best.logit[at - 1];
      best.expert[at] = best.expert[at - 1];
    }
    best.logit[at] = logits[e];
    best.expert[at] = e;
  }
  return best;
}

// Softmax over all experts divided by its sum over the chosen ones is softmax over the chosen ones.
void compute_weights(const RouteExpertsArgs& args,
                     const float* logits,
                     const Choice& best,
                     float* weights) {
  const int32_t num_chosen = args.lists.num_chosen;
  const float largest = best.logit[0];
  float sum = 0.0F;
  for (int32_t j = 0; j < num_chosen; ++j) {
    weights[j] = std::exp(best.logit[j] - largest);
    sum += weights[j];
  }
  if (args.scores == RouterScores::kSoftmax && !args.normalise) {
    sum = 0.0F;
    for (int32_t e = 0; e < args.lists.num_experts; ++e) {
      sum += std::exp(logits[e] - largest);
    }
  }
  for (int32_t j = 0; j < num_chosen; ++j) {
    weights[j] /= sum;
  }
}

// Keeps the scores of the chosen groups' experts; those of other groups become -inf.
void keep_groups(const RouteExpertsArgs& args, float* scores) {
  const int32_t size = args.lists.num_experts / args.num_groups;
  const auto score_of = [&](int32_t group) {
    const Choice best = choose(scores + int64_t{group} * size, size, 2);
    return best.logit[0] + best.logit[1];
  };
  float group_scores[kMaxExperts];
  for (int32_t g = 0; g < args.num_groups; ++g) {
    group_scores[g] = score_of(g);
  }
  for (int32_t g = 0; g < args.num_groups; ++g) {
    int32_t better = 0;
    for (int32_t other = 0; other < args.num_groups; ++other) {
      better += group_scores[other] > group_scores[g] ||
                        (group_scores[other] == group_scores[g] && other < g)
                    ? 1
                    : 0;
    }
    if (better >= args.chosen_groups) {
      std::fill_n(scores + int64_t{g} * size, size, -std::numeric_limits<float>::infinity());
    }
  }
}

float sigmoid(float logit) { return 1.0F / (1.0F + std::exp(-logit)); }

Choice choose_by_sigmoid(const RouteExpertsArgs& args, const float* logits) {
  const int32_t num_experts = args.lists.num_experts;
  float scores[kMaxExperts];
  for (int32_t e = 0; e < num_experts; ++e) {
    scores[e] = sigmoid(logits[e]) + (args.bias.empty() ? 0.0F : args.bias.data[e]);
  }
  if (args.chosen_groups < args.num_groups) {
    keep_groups(args, scores);
  }
  return choose(scores, num_experts, args.lists.num_chosen);
}

void sigmoid_weights(const RouteExpertsArgs& args,
                     const float* logits,
                     const Choice& best,
                     float* weights) {
  float sum = 0.0F;
  for (int32_t j = 0; j < args.lists.num_chosen; ++j) {
    weights[j] = sigmoid(logits[best.expert[j]]);
    sum += weights[j];
  }
  const float divisor = args.normalise ? sum + 1e-20F : 1.0F;
  for (int32_t j = 0; j < args.lists.num_chosen; ++j) {
    weights[j] /= divisor;
  }
}

// Chooses the experts of a row and computes their weights.
Choice route_row(const RouteExpertsArgs& args, const float* logits, float* weights) {
  const int32_t num_chosen = args.lists.num_chosen;
  const bool by_sigmoid = args.scores == RouterScores::kSigmoid;
  const Choice best = by_sigmoid ? choose_by_sigmoid(args, logits)
                                 : choose(logits, args.lists.num_experts, num_chosen);
  by_sigmoid ? sigmoid_weights(args, logits, best, weights)
             : compute_weights(args, logits, best, weights);
  for (int32_t j = 0; j < num_chosen; ++j) {
    weights[j] *= args.scale;
    if (!args.expert_scales.empty()) {
      weights[j] *= args.expert_scales.data[best.expert[j]];
    }
  }
  return best;
}

void check_rule(const RouteExpertsArgs& args) {
  const ExpertLists& lists = args.lists;
  const int32_t groups = args.num_groups;
  WR_CHECK(args.bias.empty() || args.bias.shape[0] == lists.num_experts);
  WR_CHECK(args.expert_scales.empty() || args.expert_scales.shape[0] == lists.num_experts);
  WR_CHECK(groups >= 1 && args.chosen_groups >= 1 && args.chosen_groups <= groups &&
               lists.num_experts % groups == 0,
           "{} of {} groups",
           args.chosen_groups,
           groups);
  const int32_t size = lists.num_experts / groups;
  WR_CHECK(groups == 1 || (size >= 2 && lists.num_chosen <= args.chosen_groups * size),
           "{} experts of {} groups of {}",
           lists.num_chosen,
           args.chosen_groups,
           size);
}

// Counting sort of the slots by expert. lists.places holds each slot's expert and gets its place.
void sort_slots(const ExpertLists& lists, int64_t num_slots) {
  int32_t next[kMaxExperts] = {};  // the place of each expert's next slot
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    ++next[lists.places.data[slot]];
  }
  int32_t place = 0;
  for (int32_t e = 0; e < lists.num_experts; ++e) {
    lists.first.data[e] = place;
    place += std::exchange(next[e], place);
  }
  lists.first.data[lists.num_experts] = place;
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    const int32_t at = next[lists.places.data[slot]]++;
    lists.slots.data[at] = static_cast<int32_t>(slot);
    lists.places.data[slot] = at;
  }
}

}  // namespace

void route_experts(Stream& stream, const RouteExpertsArgs& args) {
  const ExpertLists lists = args.lists;
  const int64_t rows = args.logits.shape[0];
  WR_CHECK(lists.num_chosen >= 1 && lists.num_chosen <= kMaxChosen &&
               lists.num_chosen <= lists.num_experts && lists.num_experts <= kMaxExperts,
           "{} of {} experts",
           lists.num_chosen,
           lists.num_experts);
  WR_CHECK_EQ(args.logits.shape[1], lists.num_experts);
  WR_CHECK_EQ(args.weights.shape[0], rows);
  WR_CHECK_EQ(args.weights.shape[1], lists.num_chosen);
  check_rule(args);
  as_cpu(stream).launch("route_experts", [args, lists, rows](ComputePool& pool) {
    const int64_t real = real_rows(lists, rows);
    pool.parallel_for(real, 16, [&](int64_t begin, int64_t end, int32_t /*worker*/) {
      for (int64_t t = begin; t < end; ++t) {
        const Choice best = route_row(args, args.logits.row(t), args.weights.row(t));
        std::copy_n(best.expert, lists.num_chosen, lists.places.data + t * lists.num_chosen);
      }
    });
    sort_slots(lists, real * lists.num_chosen);
  });
}

}  // namespace warprow::cpu
