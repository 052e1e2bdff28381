// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/used_ids.h"

#include "base/ids.h"
#include "wire/scheduler_output.h"
#include "wire/serialize.h"

#include <algorithm>

namespace warprow {

Result<UsedIds> used_ids(const StepFile& file) {
  UsedIds used;
  SchedulerOutput step;
  for (const StepFileRecord& record : file.records()) {
    if (record.message != StepMessage::kStep) {
      continue;
    }
    if (Result<void> read = deserialize(record.bytes, step); !read) {
      return tl::unexpected(read.error());
    }
    for (const BlockId block : step.block_ids) {
      used.num_blocks = std::max<int64_t>(used.num_blocks, int64_t{index_of(block)} + 1);
    }
    for (const PageId page : step.page_ids) {
      used.num_token_pages = std::max<int64_t>(used.num_token_pages, int64_t{index_of(page)} + 1);
    }
  }
  return used;
}

}  // namespace warprow
