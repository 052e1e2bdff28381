// SPDX-License-Identifier: Apache-2.0
#include "wire/serialize.h"

#include "kv/block_hash.h"
#include "wire/archive.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include <fmt/format.h>

namespace warprow {

static_assert(std::endian::native == std::endian::little,
              "scalars are copied as they lie in memory");

// The fields of each struct, listed once for reading and writing. Not in an anonymous namespace: the archives find
// them by argument-dependent lookup.

using wire::Ref;

template <typename A>
void visit(A& archive, Ref<A, Span32> v) {
  archive(v.begin, v.count);
}

template <typename A>
void visit(A& archive, Ref<A, SamplingParams> v) {
  archive(v.temperature, v.top_p, v.min_p, v.top_k, v.seed, v.num_logprobs, v.min_tokens);
  archive(v.repetition_penalty, v.frequency_penalty, v.presence_penalty, v.flags);
  archive(v.num_prompt_logprobs);
  for (auto& word : v.reserved) {
    archive(word);
  }
}

template <typename A>
void visit(A& archive, Ref<A, NewRow> v) {
  archive(v.row,
          v.generation,
          v.prompt_len,
          v.prefill_len,
          v.num_computed_tokens,
          v.tokens,
          v.adapter,
          v.params,
          v.stop_ids,
          v.token_lists,
          v.embeds);
}

template <typename A>
void visit(A& archive, Ref<A, BlockAppend> v) {
  archive(v.row, v.group, v.start, v.blocks);
}

template <typename A>
void visit(A& archive, Ref<A, PageAppend> v) {
  archive(v.row, v.start, v.pages);
}

template <typename A>
void visit(A& archive, Ref<A, ScheduledRow> v) {
  archive(v.row, v.num_tokens, v.num_computed_tokens, v.num_drafts, v.num_logits, v.wants_drafts);
}

template <typename A>
void visit(A& archive, Ref<A, EmbeddingVectors> v) {
  archive(v.width, v.values);
}

template <typename A>
void visit(A& archive, Ref<A, BlockCopy> v) {
  archive(v.group, v.from, v.to);
}

template <typename A>
void visit(A& archive, Ref<A, EncoderInput> v) {
  archive(v.row, v.item);
}

template <typename A>
void visit(A& archive, Ref<A, DataParallelShape> v) {
  archive(v.num_toks_padded, v.graph_mode);
}

template <typename A>
void visit(A& archive, Ref<A, SchedulerOutput> v) {
  archive(v.step, v.results_through, v.finished_rows, v.preempted_rows, v.new_rows);
  archive(v.block_appends, v.page_appends, v.scheduled, v.total_num_tokens);
  archive(v.token_ids, v.block_ids, v.page_ids, v.stop_ids, v.token_lists);
  archive(v.grammar_rows, v.draft_token_ids, v.num_proposals);
  archive(v.max_mixed_prefill, v.embeddings);
  archive(
      v.encoder_inputs, v.encoder_frees, v.block_copies, v.blocks_to_zero, v.connector_metadata);
  archive(v.num_common_prefix_blocks, v.data_parallel);
}

template <typename A>
void visit(A& archive, Ref<A, MaskedRow> v) {
  archive(v.row, v.num_masks);
}

template <typename A>
void visit(A& archive, Ref<A, GrammarOutput> v) {
  archive(v.masked_rows, v.withheld_rows, v.bitmask);
}

template <typename A>
void visit(A& archive, Ref<A, TokenLogprobs> v) {
  archive(v.logprob, v.rank, v.top);
}

template <typename A>
void visit(A& archive, Ref<A, RowOutput> v) {
  archive(v.row, v.generation, v.kind, v.tokens, v.num_rejected, v.failure);
  archive(v.prompt_logprobs, v.hidden, v.pooled, v.tensors, v.drafts);
}

template <typename A>
void visit(A& archive, Ref<A, StepStats> v) {
  archive(v.num_rows,
          v.num_toks,
          v.num_prefill_rows,
          v.num_toks_padded,
          v.graph_mode,
          v.row_state_bytes);
}

template <typename A>
void visit(A& archive, Ref<A, RowTensors> v) {
  archive(v.width, v.values);
}

template <typename A>
void visit(A& archive, Ref<A, NamedTensor> v) {
  archive(v.name, v.dtype, v.shape, v.bytes);
}

template <typename A>
void visit(A& archive, Ref<A, ModelRunnerOutput> v) {
  archive(v.step, v.rows, v.token_ids, v.draft_token_ids, v.has_logprobs, v.logprobs);
  archive(v.prompt_logprobs, v.top_ids, v.top_logprobs);
  archive(v.hidden_states, v.pooled, v.tensors, v.connector_output, v.stats);
}

namespace {

constexpr uint32_t kMagic = 0x77707277;  // "wrpw"
constexpr uint16_t kVersion = 7;

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t kind = 0;
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(Header) == kWireHeaderBytes);

template <typename Message>
constexpr uint16_t kKind = 0;
template <>
constexpr uint16_t kKind<SchedulerOutput> = 1;
template <>
constexpr uint16_t kKind<ModelRunnerOutput> = 2;
template <>
constexpr uint16_t kKind<GrammarOutput> = 3;

bool inside(Span32 span, size_t pool) {
  return span.begin >= 0 && span.count >= 0 && static_cast<size_t>(span.begin) <= pool &&
         static_cast<size_t>(span.count) <= pool - static_cast<size_t>(span.begin);
}

// The inconsistency in a scheduled row, or nullptr.
const char* inconsistency(const ScheduledRow& row) {
  if (row.num_tokens < 1) {
    return "scheduled.num_tokens is below 1";
  }
  if (row.num_drafts < 0 || row.num_drafts >= row.num_tokens) {
    return "scheduled.num_drafts is not below num_tokens";
  }
  if (row.num_logits != 0 && row.num_logits != 1 + row.num_drafts) {
    return "scheduled.num_logits is neither 0 nor 1 + num_drafts";
  }
  return nullptr;
}

const char* inconsistency(const EmbeddingVectors& vectors) {
  const bool is_whole = vectors.width > 0
                            ? vectors.values.size() % static_cast<size_t>(vectors.width) == 0
                            : vectors.width == 0 && vectors.values.empty();
  return is_whole ? nullptr : "embeddings.values are no whole vectors";
}

// The inconsistency within a message, or nullptr.
const char* inconsistency(const SchedulerOutput& message) {
  if (const char* wrong = inconsistency(message.embeddings); wrong != nullptr) {
    return wrong;
  }
  for (const NewRow& row : message.new_rows) {
    if (!inside(row.tokens, message.token_ids.size())) {
      return "new_rows.tokens points outside token_ids";
    }
    if (!inside(row.stop_ids, message.stop_ids.size())) {
      return "new_rows.stop_ids points outside stop_ids";
    }
    if (!inside(row.token_lists, message.token_lists.size())) {
      return "new_rows.token_lists points outside token_lists";
    }
    if (!inside(row.embeds, message.embeddings.num_vectors())) {
      return "new_rows.embeds points outside embeddings";
    }
    if (std::ranges::count(slice(message.token_ids, row.tokens), TokenId{-1}) != row.embeds.count) {
      return "new_rows.embeds has not a vector for each token without an id";
    }
  }
  for (const BlockAppend& append : message.block_appends) {
    if (!inside(append.blocks, message.block_ids.size())) {
      return "block_appends.blocks points outside block_ids";
    }
  }
  int64_t num_tokens = 0;
  size_t num_drafts = 0;
  for (const ScheduledRow& row : message.scheduled) {
    if (const char* wrong = inconsistency(row); wrong != nullptr) {
      return wrong;
    }
    num_tokens += row.num_tokens;
    num_drafts += static_cast<size_t>(row.num_drafts);
  }
  if (!message.draft_token_ids.empty() && message.draft_token_ids.size() != num_drafts) {
    return "draft_token_ids is not as long as the drafts of scheduled";
  }
  return num_tokens == message.total_num_tokens ? nullptr
                                                : "total_num_tokens is not the sum over scheduled";
}

const char* inconsistency(const GrammarOutput& message) {
  size_t num_masks = 0;
  for (const MaskedRow& row : message.masked_rows) {
    if (row.num_masks < 1) {
      return "masked_rows.num_masks is below 1";
    }
    num_masks += static_cast<size_t>(row.num_masks);
  }
  const size_t num_words = message.bitmask.size();
  const bool is_whole =
      num_masks == 0 ? num_words == 0 : num_words > 0 && num_words % num_masks == 0;
  return is_whole ? nullptr : "bitmask is no whole number of words for each mask";
}

const char* inconsistency(const NamedTensor& tensor) {
  if (tensor.dtype > DType::kI64) {
    return "tensors.dtype is unknown";
  }
  constexpr int64_t kMaxElements = int64_t{1} << 48;  // so that no product overflows
  int64_t count = 1;
  for (const int64_t dim : tensor.shape) {
    if (dim < 0 || dim > kMaxElements / std::max<int64_t>(count, 1)) {
      return "tensors.shape is no shape";
    }
    count *= dim;
  }
  return static_cast<size_t>(count) * dtype_bytes(tensor.dtype) == tensor.bytes.size()
             ? nullptr
             : "tensors.bytes do not fit their shape";
}

const char* inconsistency(const RowOutput& row) {
  if (row.kind > RowResult::kTensors) {
    return "rows.kind is unknown";
  }
  if ((row.tokens.count > 0 && row.kind != RowResult::kTokens) ||
      (row.pooled.count > 0 && row.kind != RowResult::kPooled) ||
      (row.tensors.count > 0 && row.kind != RowResult::kTensors)) {
    return "rows has a result that is not of its kind";
  }
  return row.num_rejected < 0 ? "rows.num_rejected is below 0" : nullptr;
}

const char* inconsistency(const ModelRunnerOutput& message) {
  for (const NamedTensor& tensor : message.tensors) {
    if (const char* wrong = inconsistency(tensor); wrong != nullptr) {
      return wrong;
    }
  }
  for (const RowOutput& row : message.rows) {
    if (const char* wrong = inconsistency(row); wrong != nullptr) {
      return wrong;
    }
    if (!inside(row.tokens, message.token_ids.size())) {
      return "rows.tokens points outside token_ids";
    }
    if (!inside(row.drafts, message.draft_token_ids.size())) {
      return "rows.drafts points outside draft_token_ids";
    }
    if (!inside(row.pooled, message.pooled ? message.pooled->num_vectors() : 0)) {
      return "rows.pooled points outside pooled";
    }
    if (!inside(row.tensors, message.tensors.size())) {
      return "rows.tensors points outside tensors";
    }
    if (!inside(row.prompt_logprobs, message.prompt_logprobs.size())) {
      return "rows.prompt_logprobs points outside prompt_logprobs";
    }
    if (!inside(row.hidden, message.hidden_states ? message.hidden_states->num_vectors() : 0)) {
      return "rows.hidden points outside hidden_states";
    }
  }
  for (const auto* list : {&message.logprobs, &message.prompt_logprobs}) {
    for (const TokenLogprobs& token : *list) {
      if (!inside(token.top, message.top_ids.size()) ||
          !inside(token.top, message.top_logprobs.size())) {
        return "logprobs.top points outside top_ids or top_logprobs";
      }
    }
  }
  if (message.has_logprobs && message.logprobs.size() != message.token_ids.size()) {
    return "logprobs is not parallel to token_ids";
  }
  return nullptr;
}

template <typename Message>
void write_message(const Message& message, std::vector<uint8_t>& bytes) {
  bytes.clear();
  bytes.resize(kWireHeaderBytes);
  {
    wire::Writer writer(bytes);
    writer(message);
  }
  const std::span<const uint8_t> payload =
      std::span<const uint8_t>(bytes).subspan(kWireHeaderBytes);
  Header header;
  header.kind = kKind<Message>;
  header.payload_bytes = payload.size();
  header.checksum = payload_checksum(payload);
  std::memcpy(bytes.data(), &header, sizeof(header));
}

tl::unexpected<Error> corrupt(std::string_view what) {
  return fail(ErrorCode::kCorrupt, fmt::format("step message: {}", what));
}

template <typename Message>
Result<void> read_message(std::span<const uint8_t> bytes, Message& message) {
  message.clear();
  Header header;
  if (bytes.size() < sizeof(header)) {
    return corrupt(
        fmt::format("{} bytes, shorter than its header of {}", bytes.size(), sizeof(header)));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  const std::span<const uint8_t> payload = bytes.subspan(sizeof(header));
  if (header.magic != kMagic || header.version != kVersion || header.kind != kKind<Message>) {
    return corrupt(fmt::format("magic {:#x}, version {}, kind {}; expected {:#x}, {}, {}",
                               header.magic,
                               header.version,
                               header.kind,
                               kMagic,
                               kVersion,
                               kKind<Message>));
  }
  if (header.payload_bytes != payload.size()) {
    return corrupt(
        fmt::format("payload of {} bytes, header says {}", payload.size(), header.payload_bytes));
  }
  if (header.checksum != payload_checksum(payload)) {
    return corrupt("checksum differs");
  }
  wire::Reader reader(payload);
  reader(message);
  const char* wrong = !reader.ok()             ? "a count exceeds the bytes that are left"
                      : reader.num_left() != 0 ? "bytes follow the last field"
                                               : inconsistency(message);
  if (wrong != nullptr) {
    message.clear();
    return corrupt(wrong);
  }
  return {};
}

}  // namespace

void serialize(const SchedulerOutput& message, std::vector<uint8_t>& bytes) {
  write_message(message, bytes);
}
void serialize(const GrammarOutput& message, std::vector<uint8_t>& bytes) {
  write_message(message, bytes);
}
void serialize(const ModelRunnerOutput& message, std::vector<uint8_t>& bytes) {
  write_message(message, bytes);
}

Result<void> deserialize(std::span<const uint8_t> bytes, SchedulerOutput& message) {
  return read_message(bytes, message);
}
Result<void> deserialize(std::span<const uint8_t> bytes, GrammarOutput& message) {
  return read_message(bytes, message);
}
Result<void> deserialize(std::span<const uint8_t> bytes, ModelRunnerOutput& message) {
  return read_message(bytes, message);
}

uint64_t payload_checksum(std::span<const uint8_t> payload) {
  return sip_hash_128(std::as_bytes(payload)).lo;
}

}  // namespace warprow
