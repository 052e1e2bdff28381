// SPDX-License-Identifier: Apache-2.0
#include "weights/quant_groups.h"

#include "base/check.h"
#include "base/dtype.h"
#include "weights/codebook_groups.h"

#include <array>
#include <bit>
#include <cstring>

// The block layouts are ggml's; those of Python's gguf.quants say the same and serve as the oracle
// of the test. Inner loops have constant trip counts and work on local arrays, so that the compiler
// turns them into vector code.

namespace warprow {
namespace {

constexpr float kNoBias = -0.0F;  // x + -0.0 is x for every x; +0.0 would turn -0.0 into +0.0
constexpr int kSuperBlock = 256;  // elements of a K-quant's block

const uint8_t* bytes_of(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

float load_f16(const uint8_t* p) {
  uint16_t half = 0;
  std::memcpy(&half, p, sizeof(half));
  return f16_to_f32(half);
}

uint16_t negated_half(const uint8_t* p) {
  uint16_t half = 0;
  std::memcpy(&half, p, sizeof(half));
  return static_cast<uint16_t>(half ^ 0x8000U);
}

// 2N elements from N bytes: the low nibbles, then the high ones.
template <int N>
void unpack_nibbles(const uint8_t* __restrict src, int8_t* __restrict q) {
  for (int i = 0; i < N; ++i) {
    q[i] = static_cast<int8_t>(src[i] & 0x0f);
  }
  for (int i = 0; i < N; ++i) {
    q[N + i] = static_cast<int8_t>(src[i] >> 4);
  }
}

// q[i] += 16 * bit i of the 32-bit word at src: the fifth bits of Q5_0 and Q5_1, eight elements at
// a time.
void add_fifth_bits(const uint8_t* __restrict src, int8_t* __restrict q) {
  for (int i = 0; i < 4; ++i) {
    // Byte k of `bits` keeps bit k of src[i] in place; adding 0x7f carries any set bit into the
    // byte's top.
    const uint64_t bits = (src[i] * 0x0101010101010101U) & 0x8040201008040201U;
    const uint64_t sixteens = ((bits + 0x7f7f7f7f7f7f7f7fU) & 0x8080808080808080U) >> 3;
    uint64_t eight = 0;
    std::memcpy(&eight, q + 8 * i, sizeof(eight));
    eight |= sixteens;
    std::memcpy(q + 8 * i, &eight, sizeof(eight));
  }
}

// q[i] += 16 * (kBits bits of high[i] from kShift on), for 32 elements.
template <int kShift, int kBits>
void add_high_bits(const uint8_t* __restrict high, int8_t* __restrict q) {
  for (int i = 0; i < 32; ++i) {
    q[i] = static_cast<int8_t>(q[i] | (((high[i] >> kShift) & ((1 << kBits) - 1)) << 4));
  }
}

// 256 elements from 64 bytes: of each 32 bytes the lowest two bits, then the next two, and so on.
void unpack_pairs(const uint8_t* __restrict src, int8_t* __restrict q) {
  for (int run = 0; run < 8; ++run) {
    for (int i = 0; i < 32; ++i) {
      q[32 * run + i] = static_cast<int8_t>(src[run / 4 * 32 + i] >> (run % 4 * 2) & 3);
    }
  }
}

template <int N>
void subtract(int zero, int8_t* __restrict q) {
  for (int i = 0; i < N; ++i) {
    q[i] = static_cast<int8_t>(q[i] - zero);
  }
}

// Each decoder turns one block into block_elems q and block_elems / group scales and biases.

// f16 d | 32 x i8
void decode_q8_0(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  *scale = load_f16(src);
  *bias = kNoBias;
  std::memcpy(q, src + 2, 32);
}

// f16 d | 16 bytes of nibbles
void decode_q4_0(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  *scale = load_f16(src);
  *bias = kNoBias;
  unpack_nibbles<16>(src + 2, q);
  subtract<32>(8, q);
}

// f16 d | f16 m | 16 bytes of nibbles
void decode_q4_1(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  *scale = load_f16(src);
  *bias = load_f16(src + 2);
  unpack_nibbles<16>(src + 4, q);
}

// f16 d | u32 fifth bits | 16 bytes of nibbles
void decode_q5_0(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  *scale = load_f16(src);
  *bias = kNoBias;
  unpack_nibbles<16>(src + 6, q);
  add_fifth_bits(src + 2, q);
  subtract<32>(16, q);
}

// f16 d | f16 m | u32 fifth bits | 16 bytes of nibbles
void decode_q5_1(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  *scale = load_f16(src);
  *bias = load_f16(src + 2);
  unpack_nibbles<16>(src + 8, q);
  add_fifth_bits(src + 4, q);
}

// The head that Q4_K and Q5_K share: f16 d | f16 dmin | 12 bytes with eight 6-bit scales and eight
// 6-bit minima. Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits; bytes
// 8-11 hold the low nibbles of scales (low) and minima (high) 4-7, whose upper two bits are the
// upper two of bytes 0-3 and 4-7.
void decode_k_factors(const uint8_t* src, int8_t* scale, int8_t* minimum) {
  const uint8_t* packed = src + 4;
  for (int j = 0; j < 4; ++j) {
    const uint8_t a = packed[j];
    const uint8_t b = packed[4 + j];
    const uint8_t c = packed[8 + j];
    scale[j] = static_cast<int8_t>(a & 63);
    minimum[j] = static_cast<int8_t>(b & 63);
    scale[4 + j] = static_cast<int8_t>((c & 15) | ((a >> 6) << 4));
    minimum[4 + j] = static_cast<int8_t>((c >> 4) | ((b >> 6) << 4));
  }
}

void decode_k_scales(const uint8_t* src, float* scale, float* bias) {
  const float d = load_f16(src);
  const float dmin = load_f16(src + 2);
  std::array<int8_t, 8> factor{};
  std::array<int8_t, 8> minimum{};
  decode_k_factors(src, factor.data(), minimum.data());
  for (size_t j = 0; j < 8; ++j) {
    scale[j] = d * static_cast<float>(factor[j]);
    bias[j] = -(dmin * static_cast<float>(minimum[j]));
  }
}

// head | 4 runs of 32 bytes, each two groups of nibbles
void decode_q4_k(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  decode_k_scales(src, scale, bias);
  for (int run = 0; run < 4; ++run) {
    unpack_nibbles<32>(src + 16 + run * 32, q + run * 64);
  }
}

// head | 32 bytes of fifth bits: bit g of byte i belongs to element i of group g | nibbles as in
// Q4_K
void decode_q5_k(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  decode_k_scales(src, scale, bias);
  const uint8_t* high = src + 16;
  for (int run = 0; run < 4; ++run) {
    unpack_nibbles<32>(src + 48 + run * 32, q + run * 64);
  }
  add_high_bits<0, 1>(high, q);
  add_high_bits<1, 1>(high, q + 32);
  add_high_bits<2, 1>(high, q + 64);
  add_high_bits<3, 1>(high, q + 96);
  add_high_bits<4, 1>(high, q + 128);
  add_high_bits<5, 1>(high, q + 160);
  add_high_bits<6, 1>(high, q + 192);
  add_high_bits<7, 1>(high, q + 224);
}

// 128 bytes of nibbles | 64 bytes of upper bit pairs | 16 x i8 scales | f16 d. Two halves of 128
// elements; in each, run r of 32 elements takes the low (r < 2) or high nibbles of 32 bytes and the
// bit pair r of the half's 32 upper bytes.
void decode_q6_k(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  for (int half = 0; half < 2; ++half) {
    int8_t* out = q + half * 128;
    unpack_nibbles<64>(src + half * 64, out);
    const uint8_t* high = src + 128 + half * 32;
    add_high_bits<0, 2>(high, out);
    add_high_bits<2, 2>(high, out + 32);
    add_high_bits<4, 2>(high, out + 64);
    add_high_bits<6, 2>(high, out + 96);
    subtract<128>(32, out);
  }
  const float d = load_f16(src + 208);
  for (int g = 0; g < 16; ++g) {
    scale[g] = d * static_cast<float>(static_cast<int8_t>(src[192 + g]));
    bias[g] = kNoBias;
  }
}

// Writes one block's scales as factors (SplitScales), to where out's arrays begin.
using SplitBlock = void (*)(const uint8_t*, const SplitScales& out);

// The head that Q4_K and Q5_K share. A bias is -min.
void split_k_head(const uint8_t* src, const SplitScales& out) {
  std::memcpy(out.scale_half, src, sizeof(uint16_t));
  *out.bias_half = negated_half(src + 2);
  decode_k_factors(src, out.scale_factor, out.bias_factor);
}

void split_q6_k(const uint8_t* src, const SplitScales& out) {
  std::memcpy(out.scale_half, src + 208, sizeof(uint16_t));
  std::memcpy(out.scale_factor, src + 192, 16);
}

// 16 bytes with 4-bit scales (low) and minima (high) | 64 bytes of bit pairs | f16 d | f16 dmin
void split_q2_k(const uint8_t* src, const SplitScales& out) {
  std::memcpy(out.scale_half, src + 80, sizeof(uint16_t));
  *out.bias_half = negated_half(src + 82);
  for (int g = 0; g < 16; ++g) {
    out.scale_factor[g] = static_cast<int8_t>(src[g] & 15);
    out.bias_factor[g] = static_cast<int8_t>(src[g] >> 4);
  }
}
void unpack_q2_k(const uint8_t* src, int8_t* q) { unpack_pairs(src + 16, q); }

// 32 bytes of third bits, as Q5_K's fifth | 64 bytes of bit pairs | 12 bytes with sixteen 6-bit scales | f16 d. Bytes 0-7
// of the scales hold the low nibbles of scales 0-7 (low) and 8-15 (high); byte 8 + i % 4 holds the upper two bits of
// scale i, at bit 2 (i / 4).
void split_q3_k(const uint8_t* src, const SplitScales& out) {
  std::memcpy(out.scale_half, src + 108, sizeof(uint16_t));
  const uint8_t* packed = src + 96;
  for (int i = 0; i < 16; ++i) {
    const int low = i < 8 ? packed[i] & 15 : packed[i - 8] >> 4;
    const int high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
    out.scale_factor[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
}
void unpack_q3_k(const uint8_t* src, int8_t* q) {
  unpack_pairs(src + 32, q);
  for (int run = 0; run < 8; ++run) {
    for (int i = 0; i < 32; ++i) {
      int8_t& element = q[32 * run + i];
      element = static_cast<int8_t>((element | (src[i] >> run & 1) << 2) - 4);
    }
  }
}

constexpr std::array<int8_t, 16> kQ3Numbers = {-4, -3, -2, -1, 0, 1, 2, 3};

// What the nibbles of IQ4_NL and IQ4_XS stand for.
constexpr std::array<int8_t, 16> kIq4Numbers = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

template <int N>
void look_up(const std::array<int8_t, 16>& numbers, int8_t* q) {
  for (int i = 0; i < N; ++i) {
    q[i] = numbers[static_cast<uint8_t>(q[i])];
  }
}

// f16 d | 16 bytes of nibbles
void decode_iq4_nl(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  *scale = load_f16(src);
  *bias = kNoBias;
  unpack_nibbles<16>(src + 2, q);
  look_up<32>(kIq4Numbers, q);
}

// f16 d | u16 with the upper two bits of eight 6-bit scales | 4 bytes with their low nibbles | 8 times 16 bytes of nibbles
void split_iq4_xs(const uint8_t* src, const SplitScales& out) {
  std::memcpy(out.scale_half, src, sizeof(uint16_t));
  uint16_t upper = 0;
  std::memcpy(&upper, src + 2, sizeof(upper));
  for (int g = 0; g < 8; ++g) {
    const int low = src[4 + g / 2] >> (g % 2 * 4) & 15;
    out.scale_factor[g] = static_cast<int8_t>((low | (upper >> (2 * g) & 3) << 4) - 32);
  }
}
void unpack_iq4_xs(const uint8_t* src, int8_t* q) {
  for (int g = 0; g < 8; ++g) {
    unpack_nibbles<16>(src + 8 + 16 * g, q + 32 * g);
  }
  look_up<kSuperBlock>(kIq4Numbers, q);
}

using DecodeBlock = void (*)(const uint8_t*, int8_t*, float*, float*);
using UnpackBlock = void (*)(const uint8_t*, int8_t*);

// Twice the e2m1 numbers.
constexpr std::array<int8_t, 16> kTwiceE2m1 = {
    0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Half of an e8m0 scale: 2^(e - 128).
float half_e8m0(uint8_t e) { return std::bit_cast<float>(e < 2 ? 0x200000U << e : (e - 1U) << 23); }

// e8m0 scale | 16 bytes of nibbles
void decode_mxfp4(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  *scale = half_e8m0(src[0]);
  *bias = kNoBias;
  unpack_nibbles<16>(src + 1, q);
  for (int i = 0; i < 32; ++i) {
    q[i] = kTwiceE2m1[static_cast<uint8_t>(q[i])];
  }
}

// The decoder as a template argument is inlined into the loop over blocks.
template <DecodeBlock kDecode, int kElems, int kBytes, int kGroup>
void decode_blocks(const uint8_t* src, int64_t n, int8_t* q, float* scale, float* bias) {
  constexpr int kGroups = kElems / kGroup;
  std::array<float, kGroups> unused{};
  for (int64_t i = 0; i < n; i += kElems) {
    kDecode(src, q, scale, bias == nullptr ? unused.data() : bias);
    src += kBytes;
    q += kElems;
    scale += kGroups;
    bias = bias == nullptr ? nullptr : bias + kGroups;
  }
}

template <void (*kSplit)(const uint8_t*, uint16_t*, int8_t*)>
void split_block(const uint8_t* src, const SplitScales& out) {
  kSplit(src, out.scale_half, out.scale_factor);
}

// A type of super-blocks with split scales, whose unit is 2^-kShift.
template <UnpackBlock kUnpack, SplitBlock kSplit, int kGroup, int kShift = 0, bool kBias = false>
void decode_super_block(const uint8_t* src, int8_t* q, float* scale, float* bias) {
  constexpr size_t kGroups = kSuperBlock / kGroup;
  uint16_t scale_half = 0;
  uint16_t bias_half = 0;
  std::array<int8_t, kGroups> scale_factor{};
  std::array<int8_t, kGroups> bias_factor{};
  kUnpack(src, q);
  kSplit(src, {&scale_half, scale_factor.data(), &bias_half, bias_factor.data()});
  const float d = f16_to_f32(scale_half) * (1.0F / (1 << kShift));
  const float m = f16_to_f32(bias_half);
  for (size_t g = 0; g < kGroups; ++g) {
    scale[g] = d * static_cast<float>(scale_factor[g]);
    bias[g] = kBias ? m * static_cast<float>(bias_factor[g]) : kNoBias;
  }
}

struct Quantised {
  GroupTraits traits;
  void (*decode)(const uint8_t*, int64_t, int8_t*, float*, float*);
  SplitBlock split = nullptr;
};

const Quantised* quantised(TensorType type) {
  static constexpr Quantised kQ8_0{{8, 0, 32, false, true},
                                   &decode_blocks<&decode_q8_0, 32, 34, 32>};
  static constexpr Quantised kQ4_0{{4, 8, 32, false, true},
                                   &decode_blocks<&decode_q4_0, 32, 18, 32>};
  static constexpr Quantised kQ4_1{{4, 0, 32, true, true},
                                   &decode_blocks<&decode_q4_1, 32, 20, 32>};
  static constexpr Quantised kQ5_0{{5, 16, 32, false, true},
                                   &decode_blocks<&decode_q5_0, 32, 22, 32>};
  static constexpr Quantised kQ5_1{{5, 0, 32, true, true},
                                   &decode_blocks<&decode_q5_1, 32, 24, 32>};
  static constexpr Quantised kQ4_K{
      {4, 0, 32, true, false}, &decode_blocks<&decode_q4_k, kSuperBlock, 144, 32>, &split_k_head};
  static constexpr Quantised kQ5_K{
      {5, 0, 32, true, false}, &decode_blocks<&decode_q5_k, kSuperBlock, 176, 32>, &split_k_head};
  static constexpr Quantised kQ6_K{
      {6, 32, 16, false, false}, &decode_blocks<&decode_q6_k, kSuperBlock, 210, 16>, &split_q6_k};
  static constexpr Quantised kMXFP4{{4, 0, 32, false, false, kTwiceE2m1.data()},
                                    &decode_blocks<&decode_mxfp4, 32, 17, 32>};
  static constexpr Quantised kQ2_K{
      {2, 0, 16, true, false},
      &decode_blocks<&decode_super_block<&unpack_q2_k, &split_q2_k, 16, 0, true>,
                     kSuperBlock,
                     84,
                     16>,
      &split_q2_k};
  static constexpr Quantised kQ3_K{
      {3, 4, 16, false, false, kQ3Numbers.data()},
      &decode_blocks<&decode_super_block<&unpack_q3_k, &split_q3_k, 16>, kSuperBlock, 110, 16>,
      &split_q3_k};
  static constexpr Quantised kIQ4_NL{{8, 0, 32, false, true, kIq4Numbers.data()},
                                     &decode_blocks<&decode_iq4_nl, 32, 18, 32>};
  static constexpr Quantised kIQ4_XS{
      {8, 0, 32, false, false, kIq4Numbers.data()},
      &decode_blocks<&decode_super_block<&unpack_iq4_xs, &split_iq4_xs, 32>, kSuperBlock, 136, 32>,
      &split_iq4_xs};
  static constexpr Quantised kIQ3_XXS{
      {6, 32, 32, false, false, kIq3XxsNumbers.data(), 0.5F},
      &decode_blocks<
          &decode_super_block<&unpack_iq3_xxs, &split_block<&split_scales_iq3_xxs>, 32, 1>,
          kSuperBlock,
          98,
          32>,
      &split_block<&split_scales_iq3_xxs>};
  static constexpr Quantised kIQ3_S{
      {5, 16, 32, false, false, kIq3SNumbers.data()},
      &decode_blocks<&decode_super_block<&unpack_iq3_s, &split_block<&split_scales_iq3_s>, 32, 0>,
                     kSuperBlock,
                     110,
                     32>,
      &split_block<&split_scales_iq3_s>};
  static constexpr Quantised kIQ2_XXS{
      {8, 0, 32, false, false, kIq2Numbers.data(), 0.125F},
      &decode_blocks<
          &decode_super_block<&unpack_iq2_xxs, &split_block<&split_scales_iq2_xxs>, 32, 3>,
          kSuperBlock,
          66,
          32>,
      &split_block<&split_scales_iq2_xxs>};
  static constexpr Quantised kIQ2_XS{
      {8, 0, 16, false, false, kIq2Numbers.data(), 0.125F},
      &decode_blocks<&decode_super_block<&unpack_iq2_xs, &split_block<&split_scales_iq2_xs>, 16, 3>,
                     kSuperBlock,
                     74,
                     16>,
      &split_block<&split_scales_iq2_xs>};
  static constexpr Quantised kIQ2_S{
      {8, 0, 16, false, false, kIq2Numbers.data(), 0.125F},
      &decode_blocks<&decode_super_block<&unpack_iq2_s, &split_block<&split_scales_iq2_s>, 16, 3>,
                     kSuperBlock,
                     82,
                     16>,
      &split_block<&split_scales_iq2_s>};
  static constexpr Quantised kIQ1_S{
      {5, 16, 32, false, false, kIq1Numbers.data(), 0.125F},
      &decode_blocks<&decode_super_block<&unpack_iq1_s, &split_block<&split_scales_iq1_s>, 32, 3>,
                     kSuperBlock,
                     50,
                     32>,
      &split_block<&split_scales_iq1_s>};
  static constexpr Quantised kIQ1_M{
      {5, 16, 16, false, false, kIq1Numbers.data(), 0.125F},
      &decode_blocks<&decode_super_block<&unpack_iq1_m, &split_block<&split_scales_iq1_m>, 16, 3>,
                     kSuperBlock,
                     56,
                     16>,
      &split_block<&split_scales_iq1_m>};
  switch (type) {
    case TensorType::kQ8_0:
      return &kQ8_0;
    case TensorType::kQ4_0:
      return &kQ4_0;
    case TensorType::kQ4_1:
      return &kQ4_1;
    case TensorType::kQ5_0:
      return &kQ5_0;
    case TensorType::kQ5_1:
      return &kQ5_1;
    case TensorType::kQ4_K:
      return &kQ4_K;
    case TensorType::kQ5_K:
      return &kQ5_K;
    case TensorType::kQ6_K:
      return &kQ6_K;
    case TensorType::kMXFP4:
      return &kMXFP4;
    case TensorType::kQ2_K:
      return &kQ2_K;
    case TensorType::kQ3_K:
      return &kQ3_K;
    case TensorType::kIQ4_NL:
      return &kIQ4_NL;
    case TensorType::kIQ4_XS:
      return &kIQ4_XS;
    case TensorType::kIQ3_XXS:
      return &kIQ3_XXS;
    case TensorType::kIQ3_S:
      return &kIQ3_S;
    case TensorType::kIQ2_XXS:
      return &kIQ2_XXS;
    case TensorType::kIQ2_XS:
      return &kIQ2_XS;
    case TensorType::kIQ2_S:
      return &kIQ2_S;
    case TensorType::kIQ1_S:
      return &kIQ1_S;
    case TensorType::kIQ1_M:
      return &kIQ1_M;
    default:
      return nullptr;
  }
}

}  // namespace

const GroupTraits& group_traits(TensorType type) {
  const Quantised* found = quantised(type);
  WR_CHECK(found != nullptr, "{} is not quantised", tensor_type_name(type));
  return found->traits;
}

void decode_groups(
    TensorType type, const std::byte* src, int64_t n, int8_t* q, float* scale, float* bias) {
  const Quantised* found = quantised(type);
  WR_CHECK(found != nullptr, "{} is not quantised", tensor_type_name(type));
  WR_CHECK_EQ(n % tensor_type_traits(type).block_elems, 0);
  WR_CHECK(bias != nullptr || !found->traits.has_bias, "{} has a bias", tensor_type_name(type));
  found->decode(bytes_of(src), n, q, scale, bias);
}

void decode_mxfp4_groups(
    const std::byte* numbers, const std::byte* scales, int64_t n, int8_t* q, float* scale) {
  WR_CHECK_EQ(n % 32, 0);
  for (int64_t i = 0; i < n / 2; ++i) {
    const auto two = static_cast<size_t>(numbers[i]);
    q[2 * i] = kTwiceE2m1[two & 15U];
    q[2 * i + 1] = kTwiceE2m1[two >> 4];
  }
  for (int64_t g = 0; g < n / 32; ++g) {
    scale[g] = half_e8m0(static_cast<uint8_t>(scales[g]));
  }
}

void split_mxfp4_blocks(const std::byte* src, int64_t n, std::byte* numbers, std::byte* scales) {
  WR_CHECK_EQ(n % 32, 0);
  for (int64_t g = 0; g < n / 32; ++g, src += 17, numbers += 16) {
    scales[g] = src[0];
    const std::byte* nibbles = src + 1;  // of elements i and i + 16
    for (int i = 0; i < 8; ++i) {
      const std::byte even = nibbles[2 * i];
      const std::byte odd = nibbles[2 * i + 1];
      numbers[i] = (even & std::byte{15}) | (odd << 4);
      numbers[8 + i] = (even >> 4) | (odd & std::byte{0xf0});
    }
  }
}

void split_scales(TensorType type, const std::byte* src, int64_t n, const SplitScales& out) {
  const Quantised* found = quantised(type);
  WR_CHECK(found != nullptr && found->split != nullptr,
           "{} has no split scales",
           tensor_type_name(type));
  const TensorTypeTraits& traits = tensor_type_traits(type);
  WR_CHECK_EQ(n % traits.block_elems, 0);
  const bool has_bias = found->traits.has_bias;
  const int64_t groups = traits.block_elems / traits.group;
  for (int64_t block = 0; block < n / traits.block_elems; ++block) {
    found->split(bytes_of(src) + block * traits.block_bytes,
                 {out.scale_half + block,
                  out.scale_factor + block * groups,
                  has_bias ? out.bias_half + block : nullptr,
                  has_bias ? out.bias_factor + block * groups : nullptr});
  }
}

}  // namespace warprow
