// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "weights/checkpoint.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// How a head that drafts is made.
enum class HeadKind : uint8_t {
  kEagle,   // arXiv 2401.15077
  kEagle3,  // arXiv 2503.01840
  kMtp,  // a layer of the model's own checkpoint that predicts further tokens (arXiv 2412.19437; models/mtp_spec.h)
};

// A head that drafts for a model from that model's hidden states. At position i it takes the token at i + 1 and the model's
// states at i.
//
// EAGLE-3:  h = fc(states of three layers), or fc(norm(these, side by side)); the first layer's q, k and v read
//           [norm(embedding); norm(h)], and its residual stream begins with h; logits = head(norm(stream)); behind a
//           draft, h is the stream itself.
// EAGLE:    stream = fc([embedding; h]), h = the model's hidden states behind its final norm; the first layer has no norm in
//           front of q, k and v; logits = the model's head(stream); behind a draft, h is the stream.
// MTP:      stream = fc([norm(embedding); norm(h)]), h as EAGLE's; a whole layer of the model's family; logits = the model's
//           head(norm(stream)); behind a draft, h is the stream, or norm(stream).
struct EagleSpec {
  HeadKind kind = HeadKind::kEagle3;
  DecoderSpec decoder;  // the head's layers; its vocabulary is the model's
  int32_t target_hidden_size = 0;
  // EAGLE-3: the layers of the model behind which states are taken, in the order of fc's inputs. Ascending.
  std::vector<int32_t> aux_layers;
  int32_t draft_vocab_size = 0;       // rows of its head
  bool norm_before_residual = false;  // EAGLE-3: the stream begins with norm(h)
  int32_t speculative_tokens = 0;     // that its file names; 0: none
  bool fc_bias = false;
  bool normed_states = false;  // MTP: behind a draft, h is norm(stream)
  bool hides_first = false;    // MTP: the embedding at position 0 is zeros
  // Names of tensors; empty: there is none, and the model's embedding or head is used.
  std::string fc, states_norm, embed_norm, hidden_norm, embed, head;
  std::string
      id_offsets;  // d2t: a token's id is the draft's plus this; empty: the draft's is the id

  // Elements of the model's states that a token takes.
  [[nodiscard]] int64_t states_size() const {
    return int64_t{target_hidden_size} * (kind == HeadKind::kEagle3 ? std::ssize(aux_layers) : 1);
  }
};

// Reads a head for `target` from config.json, as the authors of EAGLE publish them or in the format of the package
// speculators, and the list of tensors. Reads no weights.
//
// Errors: a field that is missing, contradicts the others or the model, or asks for something that is not supported.
Result<EagleSpec> read_eagle_spec(const Checkpoint& checkpoint,
                                  bool eagle3,
                                  const DecoderSpec& target);

// Ids of the model's vocabulary by id of the head's, from EagleSpec::id_offsets. Errors: another shape or type, an id
// outside the vocabulary.
Result<std::vector<int32_t>> read_draft_ids(const Checkpoint& checkpoint, const EagleSpec& spec);

}  // namespace warprow
