// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda_device.h"
#include "kernels/act_view.h"
#include "tests/support/op_case.h"

#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::testing {

// A CUDA device and, as the reference, an inline CPU device. Skips without a GPU. Device memory comes from one arena
// that every test resets and fills with NaN patterns.
class CudaTest : public ::testing::Test {
 protected:
  static constexpr size_t kArenaBytes = size_t{3} << 30;

  void SetUp() override {
    const cuda::Availability found = cuda::find_device();
    if (!found.why_not.empty()) {
      GTEST_SKIP() << found.why_not;
    }
    if (!shared_) {
      shared_ = cuda::make_cuda_device();
      shared_arena_ = shared_->make_arena(ArenaPurpose::kWorkspace, kArenaBytes);
    }
    stream_ = shared_->make_stream();
    shared_arena_.reset();
    cpu::CpuDeviceOptions options;
    options.mode = cpu::CpuStreamMode::kInline;
    options.num_threads = 2;
    cpu_ = cpu::make_cpu_device(options);
    cpu_stream_ = cpu_->make_stream();
  }

  [[nodiscard]] static Device& gpu() { return *shared_; }
  [[nodiscard]] Stream& stream() { return *stream_; }
  [[nodiscard]] Device& cpu_device() { return *cpu_; }
  [[nodiscard]] Stream& cpu_stream() { return *cpu_stream_; }
  [[nodiscard]] static Arena& arena() { return shared_arena_; }

  // n elements whose bytes are all 0xff: NaN as float or bf16, -1 as an integer.
  template <typename T>
  T* poisoned(size_t n) {
    T* data = shared_arena_.alloc<T>(static_cast<int64_t>(n));
    stream_->fill(data, 0xff, n * sizeof(T));
    return data;
  }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    T* data = shared_arena_.alloc<T>(static_cast<int64_t>(values.size()));
    stream_->copy_to_device(data, values.data(), values.size() * sizeof(T));
    stream_->synchronize();
    return data;
  }
  template <typename T>
  std::vector<T> download(const T* data, size_t n) {
    std::vector<T> values(n);
    stream_->copy_to_host(values.data(), data, n * sizeof(T));
    stream_->synchronize();
    return values;
  }

  // Allocates the arrays of an operation case in the arena.
  class ArenaMemory final : public CaseMemory {
   public:
    explicit ArenaMemory(Stream& stream) : stream_(stream) {}
    std::byte* put_bytes(const void* bytes, size_t n) override {
      std::byte* data = shared_arena_.alloc_bytes(n);
      stream_.copy_to_device(data, bytes, n);
      stream_.synchronize();
      return data;
    }

   private:
    Stream& stream_;
  };
  [[nodiscard]] ArenaMemory memory() { return ArenaMemory(*stream_); }
  // Expects n elements on the device to match the reference.
  void expect_elements(DType type,
                       const void* data,
                       const std::vector<double>& reference,
                       Tolerance tolerance) {
    const size_t bytes = reference.size() * dtype_bytes(type);
    const std::vector<std::byte> raw = download(static_cast<const std::byte*>(data), bytes);
    const std::vector<float> got = as_floats(type, raw.data(), reference.size());
    const int64_t at = first_mismatch(got, reference, tolerance);
    ASSERT_EQ(at, -1) << "element " << at << ": " << got[static_cast<size_t>(at)]
                      << ", the reference has " << reference[static_cast<size_t>(at)];
  }
  void expect_elements(const ActView& view,
                       const std::vector<double>& reference,
                       Tolerance tolerance) {
    expect_elements(view.dtype, view.data, reference, tolerance);
  }

  // Conversions between floats and bf16.
  static std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
    std::vector<uint16_t> out;
    out.reserve(values.size());
    for (const float v : values) {
      out.push_back(f32_to_bf16(v));
    }
    return out;
  }
  static std::vector<float> from_bf16(const std::vector<uint16_t>& values) {
    std::vector<float> out;
    out.reserve(values.size());
    for (const uint16_t v : values) {
      out.push_back(bf16_to_f32(v));
    }
    return out;
  }
  // Rounds each value to bf16, so that both devices compute on the same numbers.
  static std::vector<float> rounded(const std::vector<float>& values) {
    return from_bf16(to_bf16(values));
  }

  // A bf16 activation of these values on the device.
  ActView upload_act(const std::vector<float>& values, int64_t rows, int64_t cols) {
    return {DType::kBF16, upload(to_bf16(values)), rows, cols};
  }
  ActView poisoned_act(DType dtype, int64_t rows, int64_t cols) {
    const size_t bytes = static_cast<size_t>(rows * cols) * dtype_bytes(dtype);
    return {dtype, poisoned<std::byte>(bytes), rows, cols};
  }
  // The rows of an activation as floats, without gaps.
  std::vector<float> download_act(const ActView& act) {
    const auto cols = static_cast<size_t>(act.shape[1]);
    const auto stride = static_cast<size_t>(act.stride);
    const size_t span = act.shape[0] == 0 ? 0 : (act.shape[0] - 1) * stride + cols;
    std::vector<float> all = act.dtype == DType::kBF16
                                 ? from_bf16(download(static_cast<uint16_t*>(act.data), span))
                                 : download(static_cast<float*>(act.data), span);
    std::vector<float> out;
    for (int64_t t = 0; t < act.shape[0]; ++t) {
      const auto first = all.begin() + static_cast<int64_t>(static_cast<size_t>(t) * stride);
      out.insert(out.end(), first, first + act.shape[1]);
    }
    return out;
  }

 private:
  inline static std::unique_ptr<Device> shared_;
  inline static Arena shared_arena_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<cpu::CpuDevice> cpu_;
  std::unique_ptr<Stream> cpu_stream_;
};

}  // namespace warprow::testing
