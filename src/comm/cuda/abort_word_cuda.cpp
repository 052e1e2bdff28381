// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/abort_word.h"

#include "device/cuda/cuda_check.h"

#include <atomic>
#include <chrono>
#include <cuda_runtime_api.h>
#include <pthread.h>

namespace warprow::cuda {
namespace {

constexpr std::chrono::milliseconds kTurn{10};

void watch(const std::stop_token& stop, const AbortFlag& flag, uint32_t* word) {
  ::pthread_setname_np(::pthread_self(), "wr-abort-word");
  while (!stop.stop_requested()) {
    if (flag.raised()) {
      std::atomic_ref(*word).store(1);
      return;
    }
    std::this_thread::sleep_for(kTurn);
  }
}

}  // namespace

AbortWord::AbortWord(const AbortFlag& flag) {
  void* base = nullptr;
  WR_CUDA(cudaHostAlloc(&base, sizeof *word_, cudaHostAllocMapped | cudaHostAllocPortable));
  word_ = static_cast<uint32_t*>(base);
  *word_ = 0;
  thread_ =
      std::jthread([word = word_, &flag](const std::stop_token& stop) { watch(stop, flag, word); });
}

AbortWord::~AbortWord() {
  thread_.request_stop();
  thread_.join();
  cudaFreeHost(word_);
}

}  // namespace warprow::cuda
