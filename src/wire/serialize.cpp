// SPDX-License-Identifier: Apache-2.0
#include "wire/serialize.h"

#include "kv/block_hash.h"
#include "wire/archive.h"

#include <bit>
#include <string_view>

#include <fmt/format.h>

namespace warprow {

static_assert(std::endian::native == std::endian::little,
              "scalars are copied as they lie in memory");

// The fields of each struct, once for reading and writing. Not in an anonymous namespace: the
// archives find them by argument-dependent lookup.

// T& when the archive reads into it, else const T&.
template <typename Archive, typename T>
using Ref = std::conditional_t<Archive::kReading, T&, const T&>;

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
          v.token_lists);
}

template <typename A>
void visit(A& archive, Ref<A, BlockAppend> v) {
  archive(v.row, v.group, v.start, v.blocks);
}

template <typename A>
void visit(A& archive, Ref<A, ScheduledRow> v) {
  archive(v.row, v.num_tokens, v.num_computed_tokens, v.num_drafts);
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
  archive(v.step, v.finished_rows, v.preempted_rows, v.new_rows, v.block_appends, v.scheduled);
  archive(v.total_num_tokens, v.token_ids, v.block_ids, v.stop_ids, v.token_lists);
  archive(v.draft_token_ids, v.grammar_rows);
  archive(
      v.encoder_inputs, v.encoder_frees, v.block_copies, v.blocks_to_zero, v.connector_metadata);
  archive(v.num_common_prefix_blocks, v.data_parallel);
}

template <typename A>
void visit(A& archive, Ref<A, TokenLogprobs> v) {
  archive(v.logprob, v.rank, v.top);
}

template <typename A>
void visit(A& archive, Ref<A, RowOutput> v) {
  archive(v.row, v.generation, v.tokens, v.num_rejected, v.failure, v.prompt_logprobs, v.hidden);
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
void visit(A& archive, Ref<A, ModelRunnerOutput> v) {
  archive(v.step, v.rows, v.token_ids, v.has_logprobs, v.logprobs);
  archive(v.prompt_logprobs, v.top_ids, v.top_logprobs);
  archive(v.hidden_states, v.pooled, v.connector_output, v.stats);
}

namespace {

constexpr uint32_t kMagic = 0x77707277;  // "wrpw"
constexpr uint16_t kVersion = 1;

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t kind = 0;
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(Header) == kWireHeaderBytes);

template <typename Message>
constexpr uint16_t kKind = std::is_same_v<Message, SchedulerOutput> ? 1 : 2;

bool inside(Span32 span, size_t pool) {
  return span.begin >= 0 && span.count >= 0 && static_cast<size_t>(span.begin) <= pool &&
         static_cast<size_t>(span.count) <= pool - static_cast<size_t>(span.begin);
}

// What the message's own text contradicts, or nullptr.
const char* inconsistency(const SchedulerOutput& message) {
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
  }
  for (const BlockAppend& append : message.block_appends) {
    if (!inside(append.blocks, message.block_ids.size())) {
      return "block_appends.blocks points outside block_ids";
    }
  }
  int64_t num_tokens = 0;
  for (const ScheduledRow& row : message.scheduled) {
    if (row.num_tokens < 1) {
      return "scheduled.num_tokens is below 1";
    }
    num_tokens += row.num_tokens;
  }
  return num_tokens == message.total_num_tokens ? nullptr
                                                : "total_num_tokens is not the sum over scheduled";
}

const char* inconsistency(const ModelRunnerOutput& message) {
  for (const RowOutput& row : message.rows) {
    if (!inside(row.tokens, message.token_ids.size())) {
      return "rows.tokens points outside token_ids";
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
  wire::Writer writer(bytes);
  writer(message);
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
void serialize(const ModelRunnerOutput& message, std::vector<uint8_t>& bytes) {
  write_message(message, bytes);
}

Result<void> deserialize(std::span<const uint8_t> bytes, SchedulerOutput& message) {
  return read_message(bytes, message);
}
Result<void> deserialize(std::span<const uint8_t> bytes, ModelRunnerOutput& message) {
  return read_message(bytes, message);
}

uint64_t payload_checksum(std::span<const uint8_t> payload) {
  return sip_hash_128(std::as_bytes(payload)).lo;
}

}  // namespace warprow
