// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"

#include <cstdint>
#include <thread>

namespace warprow::cuda {

// The abort flag as kernels see it: a word of pinned memory that a thread sets. Kernels that wait for other ranks look at
// it now and then.
//
// Owns: the word and the thread, wr-abort-word.
// Thread: any. It outlives the kernels.
class AbortWord {
 public:
  explicit AbortWord(const AbortFlag& flag);
  ~AbortWord();
  AbortWord(const AbortWord&) = delete;
  AbortWord& operator=(const AbortWord&) = delete;

  // 0 until the flag is raised.
  [[nodiscard]] const uint32_t* word() const { return word_; }

 private:
  uint32_t* word_ = nullptr;
  std::jthread thread_;
};

}  // namespace warprow::cuda
