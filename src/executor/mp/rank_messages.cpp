// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_messages.h"

#include "base/check.h"
#include "config/fields.h"
#include "wire/archive.h"

#include <string_view>

namespace warprow {

// A setting as the user would write it.
struct SettingText {
  std::string name;
  std::string text;
};
// What a rank needs of the settings.
struct ConfigText {
  std::vector<SettingText> settings;
  bool offline = false;
};

// Not in an anonymous namespace: the archives find these by argument-dependent lookup.

using wire::Ref;

template <typename A>
void visit(A& archive, Ref<A, KvLayout> v) {
  archive(v.order, v.apart, v.by_block);
}

template <typename A>
void visit(A& archive, Ref<A, KvGroupSpec> v) {
  archive(v.kind, v.layout, v.dtype, v.num_layers, v.num_kv_heads, v.head_dim_k, v.head_dim_v);
  archive(v.window, v.state_pages, v.block_size, v.kernel_block_size);
}

template <typename A>
void visit(A& archive, Ref<A, KvCacheSpec> v) {
  archive(v.groups, v.num_blocks);
}

template <typename A>
void visit(A& archive, Ref<A, TokenPages> v) {
  archive(v.page_size, v.num_pages);
}

template <typename A>
void visit(A& archive, Ref<A, PoolingLabel> v) {
  archive(v.name);
}

template <typename A>
void visit(A& archive, Ref<A, PoolingFacts> v) {
  archive(v.task, v.method, v.width, v.normalize, v.dimensions, v.activation, v.labels);
  archive(v.pair_form, v.whole_prompts, v.num_segments);
}

template <typename A>
void visit(A& archive, Ref<A, ModelFacts> v) {
  archive(v.architecture, v.vocab_size, v.max_model_len, v.max_num_seqs, v.max_num_batched_tokens);
  archive(v.kv, v.token_pages, v.target_itl_ms, v.long_prefill_token_threshold);
  archive(v.long_prompt_len, v.max_prefill_pairs, v.min_deep_chunk, v.has_hidden_states);
  archive(v.max_drafts, v.whole_drafts, v.draft_lookahead, v.draft_cost, v.draft_knee);
  archive(v.draft_forward);
  archive(v.pooling, v.prompt_embeds_width, v.copies_blocks, v.max_logprobs);
  archive(v.max_loras, v.max_cpu_loras);
}

template <typename A>
void visit(A& archive, Ref<A, SettingText> v) {
  archive(v.name, v.text);
}

template <typename A>
void visit(A& archive, Ref<A, ConfigText> v) {
  archive(v.settings, v.offline);
}

template <typename A>
void visit(A& archive, Ref<A, RankReady> v) {
  archive(v.facts, v.max_concurrent_batches, v.device);
}

template <typename A>
void visit(A& archive, Ref<A, RankFailure> v) {
  archive(v.code, v.message);
}

template <typename A>
void visit(A& archive, Ref<A, RankCall> v) {
  archive(v.id, v.rank, v.operation, v.argument);
}

template <typename A>
void visit(A& archive, Ref<A, RankReply> v) {
  archive(v.id, v.failed, v.code, v.text);
}

namespace {

template <typename Message>
void write(const Message& message, std::vector<uint8_t>& bytes) {
  bytes.clear();
  wire::Writer writer(bytes);
  writer(message);
}

template <typename Message>
void read(std::span<const uint8_t> bytes, Message& message) {
  wire::Reader reader(bytes);
  reader(message);
  WR_CHECK(reader.ok() && reader.num_left() == 0, "a message of a rank has a wrong length");
}

}  // namespace

// The settings that have a flag, as text, and whether the run is offline; ranks need no others.
void encode(const RankStart& message, std::vector<uint8_t>& bytes) {
  ConfigText text;
  text.offline = message.config.offline;
  for_each_field([&](const Field& field) {
    text.settings.push_back({field.name, field_text(message.config, field)});
  });
  write(text, bytes);
}

void decode(std::span<const uint8_t> bytes, RankStart& message) {
  ConfigText text;
  read(bytes, text);
  message.config.offline = text.offline;
  for (const SettingText& setting : text.settings) {
    const Field* field = find_field(setting.name);
    WR_CHECK(field != nullptr, "a rank does not know the setting {}", setting.name);
    value_or_throw(set_field(message.config, *field, setting.text, setting.name));
  }
}

void encode(const RankReady& message, std::vector<uint8_t>& bytes) { write(message, bytes); }
void encode(const RankFailure& message, std::vector<uint8_t>& bytes) { write(message, bytes); }
void encode(const RankCall& message, std::vector<uint8_t>& bytes) { write(message, bytes); }
void encode(const RankReply& message, std::vector<uint8_t>& bytes) { write(message, bytes); }

void decode(std::span<const uint8_t> bytes, RankReady& message) { read(bytes, message); }
void decode(std::span<const uint8_t> bytes, RankFailure& message) { read(bytes, message); }
void decode(std::span<const uint8_t> bytes, RankCall& message) { read(bytes, message); }
void decode(std::span<const uint8_t> bytes, RankReply& message) { read(bytes, message); }

}  // namespace warprow
