// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace warprow {

// The hash of a full block's content: its tokens and everything before them. 128 bits of SipHash-2-4 under a fixed
// key, so that hashes agree between processes and runs; at 2^40 blocks a chance collision has a probability near
// 2^-49. The key is public, so this is no defence against collisions built on purpose (a cache salt per client is).
struct BlockHash {
  uint64_t lo = 0;
  uint64_t hi = 0;
  bool operator==(const BlockHash&) const = default;
};

// What distinguishes blocks of equal tokens.
struct BlockHashKeys {
  int32_t adapter = -1;     // -1: none
  uint64_t cache_salt = 0;  // requests share blocks only under the same salt
  uint64_t mm_hash = 0;     // of the multimodal items that touch the block; 0: none
};

// The hash of a block; parent is the hash of the block before it, BlockHash{} for the first.
[[nodiscard]] BlockHash hash_block(const BlockHash& parent,
                                   std::span<const TokenId> tokens,
                                   const BlockHashKeys& keys);

// SipHash-2-4 with 128 bits of output (Aumasson, Bernstein: "SipHash: a fast short-input PRF",
// reference vectors in its repository) under the key 00 01 .. 0f; `lo` holds the first 8 output
// bytes, little endian.
[[nodiscard]] BlockHash sip_hash_128(std::span<const std::byte> bytes);

}  // namespace warprow
