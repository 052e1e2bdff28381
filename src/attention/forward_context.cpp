// SPDX-License-Identifier: Apache-2.0
#include "attention/forward_context.h"

#include "base/check.h"

#include <array>

namespace warprow {
namespace {

struct Installed {
  const Stream* stream = nullptr;
  const ForwardContext* context = nullptr;
};

// A thread drives only a few streams: main, and one per micro-batch.
constexpr size_t kMaxStreams = 4;

std::array<Installed, kMaxStreams>& installed() {
  thread_local std::array<Installed, kMaxStreams> slots;
  return slots;
}

Installed* find(const Stream* stream) {
  for (Installed& slot : installed()) {
    if (slot.stream == stream) {
      return &slot;
    }
  }
  return nullptr;
}

}  // namespace

ScopedForwardContext::ScopedForwardContext(const Stream& stream, const ForwardContext& context)
    : stream_(&stream) {
  WR_CHECK(find(stream_) == nullptr, "the stream already runs a forward");
  Installed* slot = find(nullptr);
  WR_CHECK(slot != nullptr, "more than {} forwards on one thread", kMaxStreams);
  *slot = {stream_, &context};
}

ScopedForwardContext::~ScopedForwardContext() { *find(stream_) = {}; }

const ForwardContext& forward_context(const Stream& stream) {
  const Installed* slot = find(&stream);
  WR_CHECK(slot != nullptr, "a layer ran outside a forward: no ForwardContext on its stream");
  return *slot->context;
}

}  // namespace warprow
