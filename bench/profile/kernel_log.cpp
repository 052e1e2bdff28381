// SPDX-License-Identifier: Apache-2.0
// A library that CUDA loads into a program (CUDA_INJECTION64_PATH). It writes the begin and end of every kernel, graph
// nodes included, as "begin_ns end_ns name" lines to the file that KERNEL_LOG names. kernel_times.py builds and uses
// it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cupti.h>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Kernel {
  uint64_t begin_ns;
  uint64_t end_ns;
  std::string name;
};

struct Log {
  std::mutex mutex;
  std::vector<Kernel> kernels;
};
Log& log_of_all() {
  static auto* log = new Log;  // NOLINT: must outlive static destructors, which may still flush
  return *log;
}

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kBufferAlign = 8;

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *bytes = kBufferBytes;
  *max_records = 0;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlign, kBufferBytes));
}

void CUPTIAPI take_buffer(
    CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer, size_t /*bytes*/, size_t valid) {
  Log& log = log_of_all();
  const std::scoped_lock lock(log.mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      log.kernels.push_back({kernel->start, kernel->end, kernel->name});
    }
  }
  std::free(buffer);
}

void write_log() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  Log& log = log_of_all();
  const std::scoped_lock lock(log.mutex);
  const char* path = std::getenv("KERNEL_LOG");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) {
    std::fprintf(stderr, "kernel_log: KERNEL_LOG names no file that can be written\n");
    return;
  }
  for (const Kernel& kernel : log.kernels) {
    std::fprintf(file,
                 "%llu %llu %s\n",
                 static_cast<unsigned long long>(kernel.begin_ns),
                 static_cast<unsigned long long>(kernel.end_ns),
                 kernel.name.c_str());
  }
  std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
    std::fprintf(stderr, "kernel_log: CUPTI does not work here\n");
    return 0;
  }
  std::atexit(write_log);
  return 1;
}
