// SPDX-License-Identifier: Apache-2.0
// The row operations of a decoder layer at the shapes of Qwen3 0.6B and 8B. A graph holds 64 launches. With many tokens
// they cycle through enough buffers that L2 does not serve the reads. With few tokens inputs are in L2, as in a real
// step.
#include "kernels/embedding/embedding.h"
#include "kernels/gather/gather_rows.h"
#include "kernels/rope/rope_table.h"
#include "tests/support/gated_case.h"
#include "tests/support/rms_norm_case.h"
#include "tests/support/rope_case.h"

#include <algorithm>
#include <cstdio>
#include <cuda_bf16.h>
#include <functional>
#include <vector>

#include "bench/kernels/cuda_timing.h"

namespace warprow::cuda {
namespace {

constexpr int kCalls = 64;

struct Model {
  const char* name;
  int32_t hidden;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t intermediate;
  int32_t vocab;
};

// One buffer for each of several calls, filled with small values of the type.
class Copies {
 public:
  Copies(DType type, int64_t rows, int64_t cols)
      : type_(type),
        rows_(rows),
        cols_(cols),
        bytes_(static_cast<size_t>(rows * cols) * dtype_bytes(type)),
        count_(copies_beyond_l2(bytes_)),
        buffer_(bytes_ * static_cast<size_t>(count_)) {
    const auto n = bytes_ * static_cast<size_t>(count_) / dtype_bytes(type);
    std::vector<std::byte> host(std::min<size_t>(n, size_t{1} << 22) * dtype_bytes(type));
    for (size_t i = 0; i < host.size() / dtype_bytes(type); ++i) {
      const float v = static_cast<float>(i * 7919 % 2003) / 1000.0F - 1.0F;
      if (type == DType::kF32) {
        reinterpret_cast<float*>(host.data())[i] = v;
      } else {
        reinterpret_cast<uint16_t*>(host.data())[i] = f32_to_bf16(v);
      }
    }
    for (size_t at = 0; at < buffer_.bytes(); at += host.size()) {
      WR_CUDA(cudaMemcpy(buffer_.as<std::byte>() + at,
                         host.data(),
                         std::min(host.size(), buffer_.bytes() - at),
                         cudaMemcpyHostToDevice));
    }
  }
  [[nodiscard]] ActView at(int call) const {
    return {type_, buffer_.as<std::byte>() + bytes_ * (call % count_), rows_, cols_};
  }

 private:
  DType type_;
  int64_t rows_;
  int64_t cols_;
  size_t bytes_;
  int count_;
  BenchBuffer buffer_;
};

template <typename T>
class Uploaded {
 public:
  explicit Uploaded(const std::vector<T>& values)
      : n_(static_cast<int64_t>(values.size())), buffer_(values.size() * sizeof(T)) {
    WR_CUDA(cudaMemcpy(
        buffer_.template as<T>(), values.data(), buffer_.bytes(), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] View<T, 1> view() const { return make_view(buffer_.template as<T>(), n_); }

 private:
  int64_t n_;
  BenchBuffer buffer_;
};

std::vector<int32_t> scattered(int64_t n, int64_t below) {
  std::vector<int32_t> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(below));
  }
  return values;
}

class Bench {
 public:
  Bench(Stream& stream, const Model& model, int64_t toks)
      : stream_(stream), model_(model), toks_(toks) {}

  void run() {
    rms_norm_rows(DType::kF32);
    rms_norm_rows(DType::kBF16);
    silu();
    gather();
    table();
    rope();
    embed();
  }

 private:
  void report(const char* op, double bytes, const std::function<void(int)>& launch_nth) {
    const double us = graph_us(stream_, kCalls, launch_nth);
    const double rate = bytes / us * 1e6;
    std::printf("%-5s %5ld tokens  %-18s %8.2f us %8.1f GB/s %5.1f %%\n",
                model_.name,
                static_cast<long>(toks_),
                op,
                us,
                rate / 1e9,
                100.0 * rate / kReadBytesPerSecond);
  }
  [[nodiscard]] double elements(int64_t cols) const { return static_cast<double>(toks_ * cols); }

  // Times calls that cycle through enough copies of a case to exceed L2. launch(args) launches one.
  template <typename Case, typename Launch>
  void report_case(const char* op, const Case& c, Launch&& launch) {
    BenchBuffers buffers;
    std::vector<decltype(c.args(buffers))> calls;
    const int num_calls = copies_beyond_l2(static_cast<size_t>(c.bytes()) / 2);
    for (int i = 0; i < num_calls; ++i) {
      calls.push_back(c.args(buffers));
    }
    report(op, c.bytes(), [&](int i) { launch(calls[static_cast<size_t>(i % num_calls)]); });
  }
  void rms_norm_rows(DType in) {
    report_case(
        in == DType::kF32 ? "rms_norm f32" : "rms_norm bf16",
        testing::RmsNormCase{
            .rows = toks_, .width = model_.hidden, .in = in, .out = DType::kBF16, .eps = 1e-6F},
        [&](const RmsNormArgs& args) { cuda::rms_norm(stream_, args); });
  }
  void silu() {
    report_case(
        "silu_and_mul",
        testing::SiluCase{{.rows = toks_, .width = model_.intermediate, .type = DType::kBF16}},
        [&](const SiluAndMulArgs& args) { cuda::silu_and_mul(stream_, args); });
  }
  void gather() {
    const Copies x(DType::kBF16, toks_, model_.hidden);
    const Copies out(DType::kBF16, toks_, model_.hidden);
    const Uploaded<int32_t> index(scattered(toks_, toks_));
    report("gather_rows", elements(model_.hidden) * 4, [&](int i) {
      cuda::gather_rows(stream_, {x.at(i), index.view(), out.at(i)});
    });
  }
  void table() {
    const int32_t half = model_.head_dim / 2;
    const Copies cos(DType::kF32, toks_, half);
    const Copies sin(DType::kF32, toks_, half);
    const Uploaded<int32_t> positions(scattered(toks_, 40960));
    const Uploaded<float> inv_freq(std::vector<float>(static_cast<size_t>(half), 0.1F));
    report("rope_table", elements(half) * 8, [&](int i) {
      cuda::rope_table(stream_,
                       {positions.view(), inv_freq.view(), cos.at(i).f32(), sin.at(i).f32(), 1.0F});
    });
  }
  void rope() {
    report_case("rope_kv_write",
                testing::RopeCase{.q_heads = model_.q_heads,
                                  .kv_heads = model_.kv_heads,
                                  .dim_k = model_.head_dim,
                                  .dim_v = model_.head_dim,
                                  .rot_dim = model_.head_dim,
                                  .norm = true,
                                  .heads_first = true,
                                  .tokens = toks_,
                                  .type = DType::kBF16,
                                  .num_blocks = static_cast<int32_t>(toks_ / 16 + 1),
                                  .pads = false},
                [&](const RopeKvWriteArgs& args) { cuda::rope_kv_write(stream_, args); });
  }
  void embed() {
    const BenchBuffer table(static_cast<size_t>(model_.vocab) * model_.hidden * 2);
    WR_CUDA(cudaMemset(table.as<void>(), 1, table.bytes()));
    const Copies out(DType::kF32, toks_, model_.hidden);
    const Uploaded<int32_t> ids(scattered(toks_, model_.vocab));
    PackedWeight weight;
    weight.kind = PackedKind::kBF16;
    weight.n = model_.vocab;
    weight.k = model_.hidden;
    weight.data = table.as<std::byte>();
    report("embedding", elements(model_.hidden) * 6, [&](int i) {
      cuda::embedding(stream_, {ids.view(), weight, out.at(i)});
    });
  }

  Stream& stream_;
  const Model& model_;
  int64_t toks_;
};

}  // namespace
}  // namespace warprow::cuda

int main() {
  using warprow::cuda::Bench;
  using warprow::cuda::Model;
  constexpr Model kModels[] = {{"0.6B", 1024, 16, 8, 128, 3072, 151936},
                               {"8B", 4096, 32, 8, 128, 12288, 151936}};
  const warprow::cuda::BenchDevice gpu;
  for (const Model& model : kModels) {
    for (const int64_t toks : {1, 32, 256, 4096}) {
      Bench(*gpu.stream, model, toks).run();
    }
  }
  return 0;
}
