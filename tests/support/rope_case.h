// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/rope/rope_kv_write.h"
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
  bool v_norm = false;  // values are normalised too

  static constexpr int32_t kBlockSize = 16;

  [[nodiscard]] CaseMatrix qkv_matrix() const {
    return {tokens, int64_t{q_heads + kv_heads} * dim_k + int64_t{kv_heads} * dim_v, gap};
  }
  [[nodiscard]] CaseMatrix angles() const { return {tokens, rot_dim / 2, 0}; }
  [[nodiscard]] size_t cache_size() const {
    return static_cast<size_t>(int64_t{num_blocks} * block_stride());
  }
  // The KV slot of each token; -1: none.
  [[nodiscard]] std::vector<int64_t> slots() const {
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
      const double* value = row + int64_t{q_heads + kv_heads} * dim_k;
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
          std::vector<double> v(value + int64_t{kv_head} * dim_v,
                                value + int64_t{kv_head + 1} * dim_v);
          if (v_norm) {
            norm_head(v.data(), dim_v, value_norm());
          }
          std::ranges::copy(v, out.values.begin() + at);
        }
      }
    }
    return out;
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
