// SPDX-License-Identifier: Apache-2.0
// The row operations of a decoder layer on CUDA. They are compared with the references of their cases (tests/support),
// or with the CPU kernels on the same arguments in float32.
#include "base/dtype.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/activation/sigmoid_gate.h"
#include "kernels/add/add_rows.h"
#include "kernels/cast/cast_rows.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gather/gather_rows.h"
#include "kernels/kv_scales/kv_scales.h"
#include "kernels/linear/cpu/pack.h"
#include "kernels/logits/cap_logits.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/random/fill_random.h"
#include "kernels/rope/rope_kv_write.h"
#include "kernels/rope/rope_table.h"
#include "tests/cuda/cuda_test.h"
#include "tests/kernels/linear_fixture.h"
#include "tests/support/gated_case.h"
#include "tests/support/rms_norm_case.h"
#include "tests/support/rope_case.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;
using testing::GeluCase;
using testing::RmsNormCase;
using testing::RopeCase;
using testing::SiluCase;
using testing::stored_as;
using testing::Tolerance;

constexpr float kPoison = 8192.0F;  // exact in every type

enum class Side { kCpu, kCuda };

class SmallOpsCuda : public CudaTest {
 public:
  using CudaTest::arena;
  using CudaTest::download;
  using CudaTest::stream;
  using CudaTest::upload;

 protected:
  // Runs both sides of an operation. `args_of` makes the arguments.
  template <typename Op, typename ArgsOf>
  void run(Op&& op, ArgsOf&& args_of) {
    op(cpu_stream(), args_of(Side::kCpu));
    op(stream(), args_of(Side::kCuda));
    stream().synchronize();
  }
  float normal() { return normal_(rng_); }
  auto normals(float scale = 1.0F) {
    return [this, scale] { return scale * normal(); };
  }

  std::mt19937 rng_{20};
  std::normal_distribution<float> normal_;
};

// Elements of one type on the device, and their values as float32 on the host.
class Values {
 public:
  Values(SmallOpsCuda& test, DType type, size_t n)
      : test_(test),
        type_(type),
        host_(n, kPoison),
        device_(test.arena().alloc_bytes(n * dtype_bytes(type))) {
    upload();
  }
  // Fills with values that the type holds exactly.
  template <typename Generate>
  void fill(Generate&& generate) {
    for (float& v : host_) {
      v = type_ == DType::kBF16 ? bf16_to_f32(f32_to_bf16(generate())) : generate();
    }
    upload();
  }
  [[nodiscard]] float* host() { return host_.data(); }
  [[nodiscard]] std::byte* device() const { return device_; }
  [[nodiscard]] DType type() const { return type_; }

  // Expects the device's elements to equal what the CPU kernel wrote.
  void expect_same(float relative, float absolute) {
    const auto raw = test_.download(device_, host_.size() * dtype_bytes(type_));
    for (size_t i = 0; i < host_.size(); ++i) {
      const float got = element(raw, i);
      ASSERT_LE(std::abs(got - host_[i]), relative * std::abs(host_[i]) + absolute)
          << "element " << i << ": " << got << ", the CPU has " << host_[i];
    }
  }

 private:
  [[nodiscard]] float element(const std::vector<std::byte>& raw, size_t i) const {
    if (type_ == DType::kBF16) {
      uint16_t bits = 0;
      std::memcpy(&bits, raw.data() + i * 2, 2);
      return bf16_to_f32(bits);
    }
    float v = 0.0F;
    std::memcpy(&v, raw.data() + i * 4, 4);
    return v;
  }
  void upload() {
    std::vector<uint16_t> halves(type_ == DType::kBF16 ? host_.size() : 0);
    for (size_t i = 0; i < halves.size(); ++i) {
      halves[i] = f32_to_bf16(host_[i]);
    }
    const void* from = halves.empty() ? static_cast<const void*>(host_.data()) : halves.data();
    test_.stream().copy_to_device(device_, from, host_.size() * dtype_bytes(type_));
    test_.stream().synchronize();
  }

  SmallOpsCuda& test_;
  DType type_;
  std::vector<float> host_;
  std::byte* device_;
};

// A matrix with gaps between its rows that must not be written.
class Matrix : public Values {
 public:
  Matrix(SmallOpsCuda& test, DType type, int64_t rows, int64_t cols, int64_t gap = 0)
      : Values(test, type, static_cast<size_t>(rows * (cols + gap))),
        rows_(rows),
        cols_(cols),
        stride_(cols + gap) {}
  [[nodiscard]] ActView view(Side side) {
    return side == Side::kCuda ? ActView(type(), device(), rows_, cols_, stride_)
                               : ActView(DType::kF32, host(), rows_, cols_, stride_);
  }
  [[nodiscard]] View<float, 2> floats(Side side) { return view(side).f32(); }

 private:
  int64_t rows_;
  int64_t cols_;
  int64_t stride_;
};

// Numbers that both sides only read.
template <typename T>
class Numbers {
 public:
  Numbers(SmallOpsCuda& test, std::vector<T> values)
      : host_(std::move(values)), device_(test.upload(host_)) {}
  [[nodiscard]] View<const T, 1> view(Side side) const {
    return make_view<const T>(side == Side::kCuda ? device_ : host_.data(),
                              static_cast<int64_t>(host_.size()));
  }

 private:
  std::vector<T> host_;
  T* device_;
};

Numbers<float> norm_weight(SmallOpsCuda& test, int64_t n) {
  std::mt19937 rng(static_cast<uint32_t>(n));
  std::normal_distribution<float> normal(1.0F, 0.2F);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) {
    v = normal(rng);
  }
  return {test, values};
}

TEST_F(SmallOpsCuda, RmsNormOfEveryTypeAndWidth) {
  for (const DType in : {DType::kF32, DType::kBF16}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      for (const int64_t width :
           {1, 7, 8, 64, 100, 576, 1024, 1031, 4096, 5120, 9728, 16384, 16400}) {
        for (const int64_t gap : {0, 8, 3}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(in) << " to " << dtype_name(out) << ", "
                                            << width << " wide, gap " << gap);
          const RmsNormCase c{.rows = width % 3 == 0 ? 1 : 5,
                              .width = width,
                              .in = in,
                              .out = out,
                              .gap = gap,
                              .eps = 1e-6F};
          ArenaMemory device = memory();
          const RmsNormArgs args = c.args(device);
          rms_norm(stream(), args);
          expect_elements(args.out, c.reference(), stored_as(out, {1e-5}));
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST_F(SmallOpsCuda, RmsNormInPlaceAndOfNoRows) {
  const RmsNormCase c{.rows = 3, .width = 1024};
  ArenaMemory device = memory();
  RmsNormArgs args = c.args(device);
  args.out.data = const_cast<void*>(args.x.data);
  rms_norm(stream(), args);
  RmsNormArgs none = args;
  none.x.shape[0] = none.out.shape[0] = 0;
  rms_norm(stream(), none);
  expect_elements(args.out, c.reference(), {1e-5});
}

TEST_F(SmallOpsCuda, RmsNormOfARowDoesNotDependOnTheBatch) {
  Matrix x(*this, DType::kF32, 64, 4096);
  Matrix all(*this, DType::kF32, 64, 4096);
  Matrix last(*this, DType::kF32, 1, 4096);
  x.fill(normals());
  const auto weight = norm_weight(*this, 4096).view(Side::kCuda);
  rms_norm(stream(), {x.view(Side::kCuda), weight, all.view(Side::kCuda), 1e-6F});
  const ActView row(DType::kF32, x.floats(Side::kCuda).row(63), 1, 4096);
  rms_norm(stream(), {row, weight, last.view(Side::kCuda), 1e-6F});
  EXPECT_EQ(download(all.floats(Side::kCuda).row(63), 4096),
            download(last.floats(Side::kCuda).data, 4096));
}

TEST_F(SmallOpsCuda, SiluAndMul) {
  for (const int64_t width : {1, 7, 8, 100, 1024, 1032, 3072, 12288}) {
    for (const int64_t gap : {0, 8, 3}) {
      for (const int64_t rows : {0, 1, 5, 130}) {
        for (const DType type : {DType::kBF16, DType::kF32}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << rows << " rows, "
                                            << width << " wide, gap " << gap);
          const SiluCase c{{.rows = rows,
                            .width = width,
                            .type = type,
                            .gap = gap,
                            .scale = 1.0F,
                            .spread = 60.0F}};
          ArenaMemory device = memory();
          const SiluAndMulArgs args = c.args(device);
          silu_and_mul(stream(), args);
          expect_elements(args.out, c.reference(), stored_as(c.type, {1e-6, 1e-30}));
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST_F(SmallOpsCuda, GeluAndMul) {
  for (const int64_t width : {1, 7, 100, 1032, 12288}) {
    for (const int64_t gap : {0, 3}) {
      for (const int64_t rows : {0, 1, 130}) {
        for (const DType type : {DType::kBF16, DType::kF32}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << rows << " rows, "
                                            << width << " wide, gap " << gap);
          const GeluCase c{{.rows = rows,
                            .width = width,
                            .type = type,
                            .gap = gap,
                            .scale = 1.0F,
                            .spread = 30.0F}};
          ArenaMemory device = memory();
          const GeluAndMulArgs args = c.args(device);
          gelu_and_mul(stream(), args);
          expect_elements(args.out, c.reference(), stored_as(c.type, {3e-6, 1e-6}));
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

TEST_F(SmallOpsCuda, AddRows) {
  for (const int64_t width : {1, 100, 1024, 4096}) {
    for (const int64_t gap : {0, 3}) {
      for (const float scale : {1.0F, 0.3F}) {
        SCOPED_TRACE(::testing::Message() << width << " wide, gap " << gap << ", scale " << scale);
        Matrix x(*this, DType::kF32, 5, width, gap);
        Matrix y(*this, DType::kF32, 5, width, gap);
        x.fill(normals());
        y.fill(normals());
        run([](Stream& stream, const AddRowsArgs& args) { add_rows(stream, args); },
            [&](Side side) { return AddRowsArgs{x.floats(side), y.floats(side), scale}; });
        y.expect_same(0.0F, 0.0F);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST_F(SmallOpsCuda, CapLogits) {
  for (const int64_t width : {1, 100, 4097}) {
    for (const float cap : {0.0F, 3.0F}) {
      SCOPED_TRACE(::testing::Message() << width << " wide, cap " << cap);
      Matrix x(*this, DType::kF32, 5, width, 3);
      x.fill(normals());
      run([](Stream& stream, const CapLogitsArgs& args) { cap_logits(stream, args); },
          [&](Side side) { return CapLogitsArgs{x.floats(side), 0.7F, cap}; });
      x.expect_same(1e-6F, 1e-6F);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_F(SmallOpsCuda, CastRows) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t width : {1, 100, 4096}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << width << " wide");
      Matrix x(*this, DType::kF32, 5, width, 3);
      Matrix y(*this, type, 5, width, 5);
      x.fill(normals());
      run([](Stream& stream, const CastRowsArgs& args) { cast_rows(stream, args); },
          [&](Side side) { return CastRowsArgs{x.floats(side), y.view(side)}; });
      y.expect_same(type == DType::kF32 ? 0.0F : 0x1p-8F, 0.0F);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_F(SmallOpsCuda, SigmoidGate) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t inputs : {1, 100, 2048}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << inputs << " inputs");
      Matrix x(*this, type, 5, inputs, 3);
      Matrix y(*this, type, 5, 300, 4);
      Matrix gate(*this, DType::kF32, 1, inputs, 0);
      x.fill(normals());
      y.fill(normals());
      gate.fill(normals(1.0F / std::sqrt(static_cast<float>(inputs))));
      run([](Stream& stream, const SigmoidGateArgs& args) { sigmoid_gate(stream, args); },
          [&](Side side) {
            const float* weights = gate.floats(side).data;
            return SigmoidGateArgs{x.view(side), make_view(weights, inputs), y.view(side)};
          });
      y.expect_same(type == DType::kF32 ? 1e-5F : 0x1p-7F, 1e-6F);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_F(SmallOpsCuda, GatherRowsWithoutAnIndexCopiesAll) {
  for (const int64_t width : {1, 100, 4096}) {
    Matrix x(*this, DType::kF32, 7, width, 3);
    Matrix y(*this, DType::kF32, 7, width);
    x.fill(normals());
    run([](Stream& stream, const GatherRowsArgs& args) { gather_rows(stream, args); },
        [&](Side side) { return GatherRowsArgs{x.view(side), {}, y.view(side)}; });
    y.expect_same(0.0F, 0.0F);
  }
}

TEST_F(SmallOpsCuda, GatherRows) {
  const Numbers<int32_t> index(*this, {4, -1, 0, 4, 6});
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t width : {1, 7, 8, 100, 1024, 4096, 20000}) {
      for (const int64_t gap : {0, 8, 1}) {
        SCOPED_TRACE(::testing::Message()
                     << dtype_name(type) << ", " << width << " wide, gap " << gap);
        Matrix x(*this, type, 7, width, gap);
        Matrix y(*this, type, 5, width, gap);
        x.fill(normals());
        run([](Stream& stream, const GatherRowsArgs& args) { gather_rows(stream, args); },
            [&](Side side) {
              return GatherRowsArgs{x.view(side), index.view(side), y.view(side)};
            });
        y.expect_same(0.0F, 0.0F);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST_F(SmallOpsCuda, RopeTableUpToLongContexts) {
  for (const int half : {3, 16, 32, 64}) {
    const Numbers<int32_t> positions(*this, {0, 1, 2, 77, 4095, 32767, 131071, 1000003});
    std::vector<float> inv_freq;
    for (int i = 0; i < half; ++i) {
      inv_freq.push_back(std::pow(1e6F, -static_cast<float>(i) / static_cast<float>(half)));
    }
    const Numbers<float> frequencies(*this, inv_freq);
    Matrix cos(*this, DType::kF32, 8, half);
    Matrix sin(*this, DType::kF32, 8, half);
    run([](Stream& stream, const RopeTableArgs& args) { rope_table(stream, args); },
        [&](Side side) {
          return RopeTableArgs{positions.view(side),
                               frequencies.view(side),
                               cos.floats(side),
                               sin.floats(side),
                               1.25F};
        });
    cos.expect_same(3e-7F, 1e-7F);
    sin.expect_same(3e-7F, 1e-7F);
  }
}

TEST_F(SmallOpsCuda, KvScalesAreThoseOfTheCpu) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    const std::vector<float> x = testing::rounded_to(type, testing::normals(70 * 6 * 24, 3, 40.0F));
    std::vector<int64_t> slots(70, 1);
    slots[5] = slots[69] = -1;
    std::vector<float> wanted(6);
    for (size_t i = 0; i < x.size(); ++i) {
      float& peak = wanted[i / 24 % 6];
      peak = slots[i / (24 * 6)] < 0 ? peak : std::max(peak, std::abs(x[i]));
    }
    for (float& peak : wanted) {
      peak = kv_scale_of(peak, 448.0F);
    }
    ArenaMemory device = memory();
    KvScalesArgs args;
    args.x = ActView(type, device.put_as(type, x), 70, 6 * 24);
    args.slot_mapping = make_view<const int64_t>(device.put(slots), 70);
    args.scales = make_view(device.put(std::vector<float>(6, -1.0F)), 6);
    kv_scales(stream(), args);
    EXPECT_EQ(download(args.scales.data, 6), wanted) << dtype_name(type);
  }
}

class RopeKvWriteCuda : public SmallOpsCuda, public ::testing::WithParamInterface<RopeCase> {};

TEST_P(RopeKvWriteCuda, AgreesWithTheReference) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    for (const int tokens : {0, 1, 5, 70}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << tokens << " tokens");
      RopeCase c = GetParam();
      c.type = type;
      c.tokens = tokens;
      ArenaMemory device = memory();
      const RopeKvWriteArgs args = c.args(device);
      rope_kv_write(stream(), args);
      const RopeCase::Reference expected = c.reference();
      // A difference of products may cancel, so the tolerance is a few float32 ulp of its terms.
      const Tolerance tolerance = stored_as(type, {1e-6, type == DType::kF32 ? 4e-6 : 2e-6});
      expect_elements(args.qkv, expected.qkv, tolerance);
      expect_elements(type, args.kv.k, expected.keys, tolerance);
      expect_elements(type, args.kv.v, expected.values, c.v_norm ? tolerance : Tolerance{});
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_P(RopeKvWriteCuda, QuantisesForAnEightBitCache) {
  for (const DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    for (const int tokens : {1, 70, 600}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << tokens << " tokens");
      RopeCase c = GetParam();
      c.type = DType::kBF16;
      c.f8 = type;
      c.tokens = tokens;
      c.num_blocks = 40;
      ArenaMemory device = memory();
      const RopeKvWriteArgs args = c.args(device);
      rope_kv_write(stream(), args);
      const RopeCase::Reference expected = c.reference();
      const auto bytes_of = [&](const std::byte* data) {
        return download(reinterpret_cast<const uint8_t*>(data), c.cache_size());
      };
      EXPECT_EQ(c.first_wrong_f8(expected.keys, bytes_of(args.kv.k), 0), -1);
      EXPECT_EQ(c.first_wrong_f8(expected.values, bytes_of(args.kv.v), 1), -1);
      if (HasFailure()) {
        return;
      }
    }
  }
}

// Many tokens take another kernel than few.
TEST_P(RopeKvWriteCuda, FewAndManyTokensHaveTheSameBits) {
  for (const DType f8 : {DType::kF32, DType::kF8E4M3}) {
    RopeCase c = GetParam();
    c.type = DType::kBF16;
    c.f8 = f8;
    c.tokens = 603;
    c.num_blocks = 40;
    ArenaMemory device = memory();
    const RopeKvWriteArgs many = c.args(device);
    rope_kv_write(stream(), many);
    const RopeKvWriteArgs all = c.args(device);
    for (int64_t first = 0; first < c.tokens; first += 67) {
      const int64_t n = std::min<int64_t>(67, c.tokens - first);
      RopeKvWriteArgs few = all;
      few.qkv = all.qkv.rows(first, n);
      few.cos = make_strided(
          all.cos.data + first * all.cos.stride[0], n, all.cos.shape[1], all.cos.stride[0]);
      few.sin = make_strided(
          all.sin.data + first * all.sin.stride[0], n, all.sin.shape[1], all.sin.stride[0]);
      few.slot_mapping = make_view<const int64_t>(all.slot_mapping.data + first, n);
      rope_kv_write(stream(), few);
    }
    const auto same = [&](const void* a, const void* b, size_t bytes) {
      return download(static_cast<const std::byte*>(a), bytes) ==
             download(static_cast<const std::byte*>(b), bytes);
    };
    const size_t cache_bytes = c.cache_size() * dtype_bytes(many.kv.dtype);
    EXPECT_TRUE(same(many.qkv.data, all.qkv.data, c.qkv_matrix().size() * sizeof(uint16_t)));
    EXPECT_TRUE(same(many.kv.k, all.kv.k, cache_bytes));
    EXPECT_TRUE(same(many.kv.v, all.kv.v, cache_bytes));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         RopeKvWriteCuda,
                         ::testing::Values(RopeCase{16, 8, 128, 128, 128, false, true},
                                           RopeCase{32, 8, 128, 128, 128, false, true, true},
                                           RopeCase{32, 8, 128, 128, 128, true, true},
                                           RopeCase{9, 3, 64, 64, 64, false, false, true},
                                           RopeCase{14, 2, 64, 64, 32},
                                           RopeCase{14, 2, 64, 64, 24, true, true},
                                           RopeCase{4, 1, 256, 256, 64, false, true},
                                           RopeCase{3, 3, 256, 128, 256, false, false, true, 8},
                                           RopeCase{6, 2, 80, 80, 80, false, true},
                                           RopeCase{6, 2, 96, 96, 48, false, true, true},
                                           RopeCase{6, 2, 96, 64, 0, false, true},
                                           RopeCase{5, 1, 20, 20, 10, false, true},
                                           RopeCase{5, 1, 20, 12, 10, true, true, true},
                                           RopeCase{3, 1, 320, 320, 320, false, true},
                                           RopeCase{.q_heads = 8,
                                                    .kv_heads = 2,
                                                    .dim_k = 256,
                                                    .dim_v = 256,
                                                    .rot_dim = 256,
                                                    .norm = true,
                                                    .v_norm = true},
                                           RopeCase{.q_heads = 4,
                                                    .kv_heads = 1,
                                                    .dim_k = 512,
                                                    .dim_v = 512,
                                                    .rot_dim = 512,
                                                    .norm = true,
                                                    .v_norm = true},
                                           RopeCase{.q_heads = 5,  // queries alone
                                                    .kv_heads = 0,
                                                    .dim_k = 64,
                                                    .dim_v = 64,
                                                    .rot_dim = 64,
                                                    .norm = true},
                                           RopeCase{16, 8, 128, 128, 128, false, true, false, 3},
                                           RopeCase{16, 8, 128, 128, 128, true, false, true, 5}));

TEST_F(SmallOpsCuda, FillRandomGivesTheSameBitsOnBothDevices) {
  for (const int64_t n : {1, 7, 8, 4096, 100003}) {
    for (const int64_t first : {0, 8, 3}) {
      std::vector<uint16_t> expected(static_cast<size_t>(n));
      fill_random(cpu_stream(), {expected.data(), n, 77, 0.02F});
      uint16_t* got = poisoned<uint16_t>(static_cast<size_t>(n + first + 1));
      fill_random(stream(), {got + first, n, 77, 0.02F});
      EXPECT_EQ(download(got + first, static_cast<size_t>(n)), expected);
      EXPECT_EQ(download(got + first + n, 1)[0], 0xffff) << "wrote past the end";
    }
  }
}

TEST_F(SmallOpsCuda, FillRandomGivesTheSameBitsOfAPart) {
  constexpr int64_t kRows = 9;
  for (const int64_t cols : {8, 24, 5}) {
    for (const int64_t first : {0, 16, 7}) {
      constexpr int64_t kStride = 64;
      const auto n = static_cast<size_t>(kRows * cols);
      std::vector<uint16_t> expected(n);
      fill_random(cpu_stream(), {expected.data(), kRows * cols, 77, 0.02F, first, cols, kStride});
      uint16_t* got = poisoned<uint16_t>(n + 1);
      fill_random(stream(), {got, kRows * cols, 77, 0.02F, first, cols, kStride});
      EXPECT_EQ(download(got, n), expected);
      EXPECT_EQ(download(got + n, 1)[0], 0xffff) << "wrote past the end";
      fill_random(cpu_stream(), {expected.data(), kRows * cols, 77, 0.02F, first});
      fill_random(stream(), {got, kRows * cols, 77, 0.02F, first});
      EXPECT_EQ(download(got, n), expected);
    }
  }
}

// The same numbers as bf16 ones.
TEST_F(SmallOpsCuda, FillRandomOfFloat32) {
  constexpr int64_t kRows = 9;
  for (const int64_t cols : {0, 8, 24, 5}) {
    for (const int64_t first : {0, 16, 7}) {
      const int64_t n = cols == 0 ? 1003 : kRows * cols;
      FillRandomArgs args{nullptr, n, 77, 0.02F, first, cols, cols == 0 ? 0 : 64};
      std::vector<uint16_t> halves(static_cast<size_t>(n));
      args.dst = halves.data();
      fill_random(cpu_stream(), args);
      args.type = DType::kF32;
      std::vector<float> expected(halves.size());
      args.dst = expected.data();
      fill_random(cpu_stream(), args);
      EXPECT_EQ(expected, from_bf16(halves));
      auto* got = poisoned<float>(halves.size() + 1);
      args.dst = got;
      fill_random(stream(), args);
      EXPECT_EQ(download(got, halves.size()), expected);
      EXPECT_TRUE(std::isnan(download(got + n, 1)[0])) << "wrote past the end";
    }
  }
}

TEST_F(SmallOpsCuda, EmbeddingOfFloat32) {
  const Numbers<int32_t> ids(*this, {0, 18, -1, 19, 7, 7, 1 << 30});
  for (const int32_t width : {1, 7, 8, 100, 1024}) {
    for (const int64_t gap : {0, 8, 3}) {
      SCOPED_TRACE(::testing::Message() << width << " wide, gap " << gap);
      PackedWeight shape;
      shape.kind = PackedKind::kF32;
      shape.n = 19;
      shape.k = width;
      Matrix table(*this, DType::kF32, shape.n, width);
      table.fill(normals());
      linear_test::AlignedBytes packed(cpu::packed_bytes(shape));
      cpu::pack_values(shape, packed.data(), 0, shape.n, table.host());
      Matrix y(*this, DType::kF32, 7, width, gap);
      Matrix given(*this, DType::kF32, 7, width, gap);
      given.fill(normals());
      run([](Stream& stream, const EmbeddingArgs& args) { embedding(stream, args); },
          [&](Side side) {
            PackedWeight weight = shape;
            weight.data = side == Side::kCuda ? table.device() : packed.data();
            return EmbeddingArgs{ids.view(side), weight, y.view(side), given.floats(side), 1.7F, 7};
          });
      y.expect_same(0.0F, 0.0F);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

TEST_F(SmallOpsCuda, Embedding) {
  const Numbers<int32_t> ids(*this, {0, 18, -1, 19, 7, 7, 1 << 30});
  for (const int32_t width : {1, 7, 8, 100, 1024, 4096}) {
    for (const int64_t gap : {0, 8, 3}) {
      SCOPED_TRACE(::testing::Message() << width << " wide, gap " << gap);
      PackedWeight shape;
      shape.kind = PackedKind::kBF16;
      shape.n = 19;
      shape.k = width;
      Matrix table(*this, DType::kBF16, shape.n, width);
      table.fill(normals());
      std::vector<uint16_t> plain;
      for (int64_t i = 0; i < int64_t{shape.n} * width; ++i) {
        plain.push_back(f32_to_bf16(table.host()[i]));
      }
      linear_test::AlignedBytes packed(cpu::packed_bytes(shape));
      cpu::pack_values(shape, packed.data(), 0, shape.n, plain.data());
      Matrix y(*this, DType::kF32, 7, width, gap);
      run([](Stream& stream, const EmbeddingArgs& args) { embedding(stream, args); },
          [&](Side side) {
            PackedWeight weight = shape;
            weight.data = side == Side::kCuda ? table.device() : packed.data();
            return EmbeddingArgs{ids.view(side), weight, y.view(side)};
          });
      y.expect_same(0.0F, 0.0F);
      Matrix given(*this, DType::kF32, 7, width, gap);
      given.fill(normals());
      run([](Stream& stream, const EmbeddingArgs& args) { embedding(stream, args); },
          [&](Side side) {
            PackedWeight weight = shape;
            weight.data = side == Side::kCuda ? table.device() : packed.data();
            return EmbeddingArgs{ids.view(side), weight, y.view(side), given.floats(side), 1.7F};
          });
      y.expect_same(0.0F, 0.0F);
      run([](Stream& stream, const EmbeddingArgs& args) { embedding(stream, args); },
          [&](Side side) {
            PackedWeight weight = shape;
            weight.data = side == Side::kCuda ? table.device() : packed.data();
            return EmbeddingArgs{ids.view(side), weight, y.view(side), given.floats(side), 1.7F, 7};
          });
      y.expect_same(0.0F, 0.0F);
      if (HasFatalFailure()) {
        return;
      }
    }
  }
}

}  // namespace
}  // namespace warprow
