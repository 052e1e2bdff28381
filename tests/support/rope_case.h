// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "kernels/rope/rope_kv_write.h"
#include "tests/support/float8.h"
#include "tests/support/op_case.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace warprow::testing {

// rope_kv_write: normalises (optionally) and rotates queries and keys in place, and writes keys and values to the
// cache.
struct RopeCase {
  int32_t q_heads = 1;
  int32_t kv_heads = 1;
  int32_t dim_k = 1;
  int32_t dim_v = 1;
  int32_t rot_dim = 0;
  bool interleaved = false;
  bool norm = false;
  bool heads_first = false;  // cache layout [block][head][token] instead of [block][token][head]
  int64_t gap = 0;           // elements between rows of qkv
  int64_t tokens = 1;
  DType type = DType::kF32;  // of qkv and of the cache
  int32_t num_blocks = 7;
  bool pads =
      true;  // every fourth token is padding and slots are scattered; else slots are in order
  uint32_t seed = 21;
  bool v_norm = false;     // values are normalised too
  DType f8 = DType::kF32;  // 8-bit floats: the cache's type instead, with scales by KV head

  static constexpr int32_t kBlockSize = 16;

  [[nodiscard]] CaseMatrix qkv_matrix() const {
    return {tokens, int64_t{q_heads + kv_heads} * dim_k + int64_t{kv_heads} * dim_v, gap};
  }
  [[nodiscard]] CaseMatrix angles() const { return {tokens, rot_dim / 2, 0}; }
  [[nodiscard]] size_t cache_size() const {
    return static_cast<size_t>(int64_t{num_blocks} * block_stride());
  }
  // The KV slot of each token; -1: none. No two tokens share a slot, so the cache must have room for all.
  [[nodiscard]] std::vector<int64_t> slots() const {
    WR_CHECK(tokens <= int64_t{num_blocks} * kBlockSize);
    std::vector<int64_t> out;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t scattered = (t * 37 + 5) % (int64_t{num_blocks} * kBlockSize);
      out.push_back(!pads ? t : t % 4 == 2 ? -1 : scattered);
    }
    return out;
  }
  [[nodiscard]] std::vector<float> qkv() const {
    return rounded_to(type, normals(qkv_matrix().size(), seed, 2.0F));
  }
  [[nodiscard]] std::vector<float> angle(double (*function)(double)) const {
    std::vector<float> values = normals(angles().size(), seed + 1);
    for (float& v : values) {
      v = static_cast<float>(function(v));
    }
    return values;
  }
  [[nodiscard]] std::vector<float> cos() const { return angle(&std::cos); }
  [[nodiscard]] std::vector<float> sin() const { return angle(&std::sin); }
  [[nodiscard]] std::vector<float> q_norm() const {
    return normals(static_cast<size_t>(dim_k), seed + 2, 0.2F, 1.0F);
  }
  [[nodiscard]] std::vector<float> k_norm() const {
    return normals(static_cast<size_t>(dim_k), seed + 3, 0.2F, 1.0F);
  }

  [[nodiscard]] std::vector<float> value_norm() const {
    return normals(static_cast<size_t>(dim_v), seed + 4, 0.2F, 1.0F);
  }

  static constexpr uint8_t kF8Poison = 0x55;
  [[nodiscard]] std::vector<float> scales(uint32_t kind) const {
    std::vector<float> all;
    for (int32_t h = 0; h < kv_heads; ++h) {
      all.push_back(0.013F * static_cast<float>(kind + 1) * static_cast<float>(h % 5 + 1));
    }
    return all;
  }

  [[nodiscard]] RopeKvWriteArgs args(CaseMemory& memory) const {
    const std::vector<float> empty(cache_size(), kCasePoison);
    RopeKvWriteArgs args;
    args.qkv = qkv_matrix().view(type, memory.put_as(type, qkv()));
    args.cos = make_view<const float>(memory.put(cos()), tokens, rot_dim / 2);
    args.sin = make_view<const float>(memory.put(sin()), tokens, rot_dim / 2);
    args.slot_mapping = make_view<const int64_t>(memory.put(slots()), tokens);
    if (norm) {
      args.q_norm = make_view<const float>(memory.put(q_norm()), int64_t{dim_k});
      args.k_norm = make_view<const float>(memory.put(k_norm()), int64_t{dim_k});
    }
    if (v_norm) {
      args.v_norm = make_view<const float>(memory.put(value_norm()), int64_t{dim_v});
    }
    args.kv.k = memory.put_as(type, empty);
    args.kv.v = memory.put_as(type, empty);
    args.kv.dtype = type;
    if (is_f8(f8)) {
      const std::vector<uint8_t> unwritten(cache_size(), kF8Poison);
      args.kv.k = reinterpret_cast<std::byte*>(memory.put(unwritten));
      args.kv.v = reinterpret_cast<std::byte*>(memory.put(unwritten));
      args.kv.dtype = f8;
      args.kv.k_scales = memory.put(scales(0));
      args.kv.v_scales = memory.put(scales(1));
    }
    args.kv.block_size = kBlockSize;
    args.kv.num_kv_heads = kv_heads;
    args.kv.head_dim_k = dim_k;
    args.kv.head_dim_v = dim_v;
    args.kv.block_stride = block_stride();
    args.kv.head_stride = heads_first ? kBlockSize * dim() : dim();
    args.kv.token_stride = heads_first ? dim() : kv_heads * dim();
    args.num_q_heads = q_heads;
    args.rot_dim = rot_dim;
    args.interleaved = interleaved;
    args.norm_eps = kEps;
    return args;
  }

  // All of qkv and of the cache, including elements that are not written.
  struct Reference {
    std::vector<double> qkv;
    std::vector<double> keys;
    std::vector<double> values;
  };
  [[nodiscard]] Reference reference() const {
    const std::vector<float> in = qkv();
    Reference out{{in.begin(), in.end()},
                  std::vector<double>(cache_size(), kCasePoison),
                  std::vector<double>(cache_size(), kCasePoison)};
    const std::vector<int64_t> to = slots();
    const std::vector<float> cosines = cos();
    const std::vector<float> sines = sin();
    const std::vector<float> weights[] = {q_norm(), k_norm()};
    for (int64_t t = 0; t < tokens; ++t) {
      double* row = out.qkv.data() + t * qkv_matrix().stride();
      double* value = row + int64_t{q_heads + kv_heads} * dim_k;
      for (int32_t h = 0; v_norm && h < kv_heads; ++h) {
        norm_head(value + int64_t{h} * dim_v, dim_v, value_norm());
      }
      for (int32_t h = 0; h < q_heads + kv_heads; ++h) {
        double* head = row + int64_t{h} * dim_k;
        if (norm) {
          norm_head(head, dim_k, weights[h < q_heads ? 0 : 1]);
        }
        rotate(head,
               &cosines[static_cast<size_t>(t * rot_dim / 2)],
               &sines[static_cast<size_t>(t * rot_dim / 2)]);
        if (h >= q_heads && to[static_cast<size_t>(t)] >= 0) {
          const int32_t kv_head = h - q_heads;
          const int64_t at = cache_index(to[static_cast<size_t>(t)], kv_head);
          std::copy_n(head, dim_k, out.keys.begin() + at);
          std::copy_n(value + int64_t{kv_head} * dim_v, dim_v, out.values.begin() + at);
        }
      }
    }
    return out;
  }
  // The first element of an 8-bit cache that is not the nearest number to reference / scale; -1: none. kind: 0 for keys, 1
  // for values. A kernel's float32 may round the other way near the middle of two numbers.
  [[nodiscard]] int64_t first_wrong_f8(const std::vector<double>& expected,
                                       const std::vector<uint8_t>& got,
                                       uint32_t kind) const {
    const std::vector<float> by_head = scales(kind);
    for (size_t i = 0; i < got.size(); ++i) {
      if (expected[i] == static_cast<double>(kCasePoison)) {
        if (got[i] != kF8Poison) {
          return static_cast<int64_t>(i);
        }
        continue;
      }
      const auto in_block = static_cast<int64_t>(i) % block_stride();
      const int64_t head =
          heads_first ? in_block / (kBlockSize * dim()) : in_block / dim() % kv_heads;
      const double wanted = expected[i] / static_cast<double>(by_head[static_cast<size_t>(head)]);
      const double slack = 1e-5 * std::fabs(wanted) + 1e-5;
      const uint8_t low = f8_bits(f8, static_cast<float>(wanted - slack));
      const uint8_t high = f8_bits(f8, static_cast<float>(wanted + slack));
      const float value = f8_value(f8, got[i]);
      if (!(value >= f8_value(f8, low) && value <= f8_value(f8, high))) {
        return static_cast<int64_t>(i);
      }
    }
    return -1;
  }

  // Reads and writes q and k in place, and writes k and v to the cache.
  [[nodiscard]] double bytes() const {
    const double elements = 2.0 * q_heads * dim_k + 3.0 * kv_heads * dim_k + 2.0 * kv_heads * dim_v;
    return static_cast<double>(tokens) * elements * static_cast<double>(dtype_bytes(type));
  }

 private:
  static constexpr float kEps = 1e-6F;

  [[nodiscard]] int64_t dim() const { return std::max(dim_k, dim_v); }
  [[nodiscard]] int64_t block_stride() const { return int64_t{kBlockSize} * kv_heads * dim(); }
  [[nodiscard]] int64_t cache_index(int64_t slot, int32_t head) const {
    const int64_t token = slot % kBlockSize;
    return slot / kBlockSize * block_stride() + (heads_first
                                                     ? (int64_t{head} * kBlockSize + token) * dim()
                                                     : (token * kv_heads + head) * dim());
  }
  static void norm_head(double* head, int32_t dim, const std::vector<float>& weight) {
    double squares = 0.0;
    for (int32_t i = 0; i < dim; ++i) {
      squares += head[i] * head[i];
    }
    const double factor = 1.0 / std::sqrt(squares / dim + static_cast<double>(kEps));
    for (int32_t i = 0; i < dim; ++i) {
      head[i] *= factor * static_cast<double>(weight[static_cast<size_t>(i)]);
    }
  }
  void rotate(double* head, const float* cosines, const float* sines) const {
    const int32_t half = rot_dim / 2;
    for (int32_t i = 0; i < half; ++i) {
      double& a = head[interleaved ? 2 * i : i];
      double& b = head[interleaved ? 2 * i + 1 : i + half];
      const double c = static_cast<double>(cosines[i]);
      const double s = static_cast<double>(sines[i]);
      const double rotated = a * c - b * s;
      b = b * c + a * s;
      a = rotated;
    }
  }
};

}  // namespace warprow::testing
