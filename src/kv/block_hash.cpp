// SPDX-License-Identifier: Apache-2.0
#include "kv/block_hash.h"

#include <bit>
#include <cstring>

namespace warprow {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

constexpr uint64_t kKey0 = 0x0706050403020100ULL;
constexpr uint64_t kKey1 = 0x0f0e0d0c0b0a0908ULL;

// The running state: four words, two rounds for each 8 bytes of input.
class SipState {
 public:
  void add(uint64_t word) {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
    num_bytes_ += 8;
  }

  // `tail` holds the last num_tail (< 8) bytes in its low end, zeros above.
  BlockHash finish(uint64_t tail, uint64_t num_tail) {
    add(((num_bytes_ + num_tail) << 56) | tail);
    BlockHash hash;
    v2_ ^= 0xee;
    rounds(4);
    hash.lo = v0_ ^ v1_ ^ v2_ ^ v3_;
    v1_ ^= 0xdd;
    rounds(4);
    hash.hi = v0_ ^ v1_ ^ v2_ ^ v3_;
    return hash;
  }

 private:
  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0_ += v1_;
      v2_ += v3_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ = std::rotl(v0_, 32) + v3_;
      v2_ += v1_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  uint64_t v0_ = kKey0 ^ 0x736f6d6570736575ULL;
  uint64_t v1_ = kKey1 ^ 0x646f72616e646f6dULL ^ 0xee;
  uint64_t v2_ = kKey0 ^ 0x6c7967656e657261ULL;
  uint64_t v3_ = kKey1 ^ 0x7465646279746573ULL;
  uint64_t num_bytes_ = 0;
};

// Adds whole words from memory and returns the rest, at most 7 bytes, zero-extended.
uint64_t add_bytes(SipState& state, const void* data, size_t num_bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  uint64_t word = 0;
  for (; num_bytes >= 8; num_bytes -= 8, at += 8) {
    std::memcpy(&word, at, 8);
    state.add(word);
  }
  word = 0;
  if (num_bytes > 0) {
    std::memcpy(&word, at, num_bytes);
  }
  return word;
}

}  // namespace

BlockHash hash_block(const BlockHash& parent,
                     std::span<const TokenId> tokens,
                     const BlockHashKeys& keys) {
  SipState state;
  state.add(parent.lo);
  state.add(parent.hi);
  state.add(static_cast<uint64_t>(static_cast<uint32_t>(keys.adapter)));
  state.add(keys.cache_salt);
  state.add(keys.mm_hash);
  const uint64_t tail = add_bytes(state, tokens.data(), tokens.size_bytes());
  return state.finish(tail, tokens.size_bytes() % 8);
}

BlockHash sip_hash_128(std::span<const std::byte> bytes) {
  SipState state;
  const uint64_t tail = add_bytes(state, bytes.data(), bytes.size());
  return state.finish(tail, bytes.size() % 8);
}

}  // namespace warprow
