// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_memory.h"

#include "base/math.h"
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/shared_host_group.h"

namespace warprow {
namespace {

// A step of 256 rows takes about 10 KiB. A prompt of a million tokens is copied in pieces.
constexpr size_t kCommandBytes = size_t{1} << 22;
constexpr size_t kAnswerBytes = size_t{1} << 21;

// Where each part begins, in whole pages.
struct Offsets {
  Offsets(int32_t tensor_size, int32_t pipeline_size) {
    const int32_t num_ranks = tensor_size * pipeline_size;
    take(sizeof(ControlBlock));  // at 0
    commands = take(MessageRing::bytes(kCommandBytes, num_ranks));
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      answers.push_back(take(MessageRing::bytes(kAnswerBytes, 1)));
    }
    all_ranks = take(shared_host_group_bytes(num_ranks));
    for (int32_t stage = 0; stage < pipeline_size; ++stage) {
      tensor_groups.push_back(take(shared_memory_communicator_bytes(tensor_size)));
    }
    for (int32_t rank = 0; pipeline_size > 1 && rank < tensor_size; ++rank) {
      stage_groups.push_back(
          take(shared_memory_communicator_bytes(pipeline_size, stage_slots(pipeline_size))));
    }
  }
  size_t take(size_t bytes) {
    const size_t begin = end;
    end += round_up(bytes, size_t{4096});
    return begin;
  }

  size_t end = 0;
  size_t commands;
  std::vector<size_t> answers;
  size_t all_ranks;
  std::vector<size_t> tensor_groups;
  std::vector<size_t> stage_groups;
};

}  // namespace

size_t RankMemory::bytes(int32_t tensor_size, int32_t pipeline_size) {
  return Offsets(tensor_size, pipeline_size).end;
}

RankMemory::RankMemory(std::byte* memory, int32_t tensor_size, int32_t pipeline_size)
    : control(reinterpret_cast<ControlBlock*>(memory)),
      commands(memory + Offsets(tensor_size, pipeline_size).commands,
               kCommandBytes,
               tensor_size * pipeline_size) {
  const Offsets offsets(tensor_size, pipeline_size);
  for (const size_t at : offsets.answers) {
    answers.emplace_back(memory + at, kAnswerBytes, 1);
  }
  all_ranks = memory + offsets.all_ranks;
  for (const size_t at : offsets.tensor_groups) {
    tensor_groups.push_back(memory + at);
  }
  for (const size_t at : offsets.stage_groups) {
    stage_groups.push_back(memory + at);
  }
}

}  // namespace warprow
