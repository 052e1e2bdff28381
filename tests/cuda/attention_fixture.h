// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "kernels/attention/native/scheduled_attention.h"
#include "kernels/attention/paged_attention.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::testing {

// The caches of the native kernels.
inline constexpr DType kCacheTypes[] = {DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};

// Runs the native attention kernels and the CPU's on the same inputs, which are exact in bf16.
class AttentionCudaTest : public CudaTest {
 protected:
  struct Result {
    std::vector<float> out;
    std::vector<float> lse;
  };

  // Those that the native kernels have on this GPU.
  [[nodiscard]] static std::vector<int32_t> head_dims() {
    return gpu().facts().compute_capability == 90 ? std::vector<int32_t>{64, 128, 256}
                                                  : std::vector<int32_t>{64, 128};
  }

  void build(const AttentionCase& c, uint32_t seed) {
    batch_ = AttentionBatch(c, seed);
    upload_batch();
  }
  void upload_batch() {
    device_.q = upload(to_bf16(batch_.q));
    device_.cache = upload(batch_.stored_cache());
    device_.k_scales = upload(batch_.k_scales);
    device_.v_scales = upload(batch_.v_scales);
    device_.table = upload(batch_.table);
    device_.begins = upload(batch_.begins);
    device_.idx = upload(batch_.idx_mapping);
    device_.starts = upload(batch_.query_start_loc);
    device_.lens = upload(batch_.seq_lens);
    device_.sinks = upload(batch_.sink_values);
  }
  [[nodiscard]] int64_t num_toks() const { return batch_.num_toks(); }

  void set_cache(PagedAttentionArgs& args) const {
    args.kv.k = device_.cache + batch_.keys_at * batch_.element_bytes();
    args.kv.v = device_.cache + batch_.values_at * batch_.element_bytes();
    args.kv.k_scales = device_.k_scales;
    args.kv.v_scales = device_.v_scales;
  }

  PagedAttentionArgs cuda_args() {
    PagedAttentionArgs args = batch_.args();
    const int64_t rows = static_cast<int64_t>(batch_.c.rows.size());
    const int64_t cols = int64_t{batch_.c.q_heads} * batch_.c.dim;
    args.q = ActView(DType::kBF16, device_.q, num_toks(), cols, batch_.q_stride);
    args.out = poisoned_act(DType::kBF16, num_toks(), cols);
    args.lse = make_view(poisoned<float>(static_cast<size_t>(num_toks() * batch_.c.q_heads)),
                         num_toks(),
                         batch_.c.q_heads);
    set_cache(args);
    args.block_table = {device_.table, device_.begins, static_cast<int32_t>(batch_.table.size())};
    args.idx_mapping = make_view<const int32_t>(device_.idx, rows);
    args.query_start_loc = make_view<const int32_t>(device_.starts, rows + 1);
    args.seq_lens = make_view<const int32_t>(device_.lens, rows);
    if (batch_.c.sinks) {
      args.sinks = make_view<const float>(device_.sinks, batch_.c.q_heads);
    }
    const size_t scratch = native_attention_scratch_bytes(
        batch_.kv, batch_.c.q_heads, static_cast<int32_t>(rows), batch_.c.decode_len);
    args.scratch = make_view(poisoned<std::byte>(scratch), static_cast<int64_t>(scratch));
    return args;
  }

  Result fetch(const PagedAttentionArgs& args) {
    return {download_act(args.out),
            download(args.lse.data, static_cast<size_t>(num_toks() * batch_.c.q_heads))};
  }

  Result run_cuda() {
    const PagedAttentionArgs args = cuda_args();
    paged_attention(stream(), args);
    return fetch(args);
  }

  Result run_cpu() {
    PagedAttentionArgs args = batch_.args();
    const int64_t rows = static_cast<int64_t>(batch_.c.rows.size());
    const int64_t cols = int64_t{batch_.c.q_heads} * batch_.c.dim;
    Result result;
    result.out.assign(static_cast<size_t>(num_toks() * cols), -7.0F);
    result.lse.assign(static_cast<size_t>(num_toks() * batch_.c.q_heads), -7.0F);
    args.q = make_strided<const float>(batch_.q.data(), num_toks(), cols, batch_.q_stride);
    args.out = make_view(result.out.data(), num_toks(), cols);
    args.lse = make_view(result.lse.data(), num_toks(), batch_.c.q_heads);
    std::vector<std::byte> cache = batch_.stored_cache();
    args.kv.k = cache.data() + batch_.keys_at * batch_.element_bytes();
    args.kv.v = cache.data() + batch_.values_at * batch_.element_bytes();
    args.kv.k_scales = batch_.k_scales.data();
    args.kv.v_scales = batch_.v_scales.data();
    args.block_table = {
        batch_.table.data(), batch_.begins.data(), static_cast<int32_t>(batch_.table.size())};
    args.idx_mapping = make_view<const int32_t>(batch_.idx_mapping.data(), rows);
    args.query_start_loc = make_view<const int32_t>(batch_.query_start_loc.data(), rows + 1);
    args.seq_lens = make_view<const int32_t>(batch_.seq_lens.data(), rows);
    if (batch_.c.sinks) {
      args.sinks = make_view<const float>(batch_.sink_values.data(), batch_.c.q_heads);
    }
    const size_t scratch = paged_attention_scratch_bytes(
        batch_.kv, batch_.c.q_heads, static_cast<int32_t>(rows), cpu_device().facts().num_threads);
    std::vector<std::byte> bytes(scratch);
    args.scratch = make_view(bytes.data(), static_cast<int64_t>(scratch));
    paged_attention(cpu_stream(), args);
    return result;
  }

  // Padding rows must be unchanged; all other rows must be near the expected values.
  void expect_near(const Result& got, const Result& want) {
    const int64_t cols = int64_t{batch_.c.q_heads} * batch_.c.dim;
    for (size_t r = 0; r < batch_.c.rows.size(); ++r) {
      for (int64_t t = batch_.query_start_loc[r]; t < batch_.query_start_loc[r + 1]; ++t) {
        for (int64_t i = t * cols; i < (t + 1) * cols; ++i) {
          const float g = got.out[static_cast<size_t>(i)];
          const float w = want.out[static_cast<size_t>(i)];
          if (batch_.idx_mapping[r] < 0) {
            ASSERT_TRUE(std::isnan(g)) << "padding row " << r << " was written";
          } else {
            ASSERT_LE(std::abs(g - w), 0.006F + 0.01F * std::abs(w))
                << "row " << r << " of " << batch_.c.rows[r].len << " token " << t << " column "
                << i % cols << ": " << g << " for " << w;
          }
        }
        for (int32_t h = 0; h < batch_.c.q_heads && batch_.idx_mapping[r] >= 0; ++h) {
          const auto i = static_cast<size_t>(t * batch_.c.q_heads + h);
          ASSERT_LE(std::abs(got.lse[i] - want.lse[i]), 2e-3F + 1e-4F * std::abs(want.lse[i]))
              << "lse of row " << r << " head " << h;
        }
      }
    }
  }

  void check(const AttentionCase& c, uint32_t seed = 1) {
    SCOPED_TRACE(c.text());
    arena().reset();
    build(c, seed);
    const Result want = run_cpu();
    expect_near(run_cuda(), want);
    if (c.num_decode_rows > 0) {
      SCOPED_TRACE("settled");
      cuda::ScheduledAttentionArgs args{cuda_args(), c.window, true};
      cuda::attention_schedule(stream(), args);
      stream().synchronize();
      cuda::attention_forward(stream(), args);
      cuda::attention_forward(stream(), args);
      expect_near(fetch(args), want);
    }
  }

  struct {
    uint16_t* q;
    std::byte* cache;
    float* k_scales;
    float* v_scales;
    int32_t* table;
    int32_t* begins;
    int32_t* idx;
    int32_t* starts;
    int32_t* lens;
    float* sinks;
  } device_ = {};
  AttentionBatch batch_;
};

}  // namespace warprow::testing
