// SPDX-License-Identifier: Apache-2.0
#include "runner/graphs/graph_cache.h"

#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_stream.h"

#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// A CPU device whose free memory is a number in the test's hand.
class MeteredDevice final : public Device {
 public:
  MeteredDevice() {
    cpu::CpuDeviceOptions options;
    options.mode = cpu::CpuStreamMode::kInline;
    options.num_threads = 1;
    cpu_ = cpu::make_cpu_device(options);
  }
  [[nodiscard]] const DeviceFacts& facts() const override { return cpu_->facts(); }
  [[nodiscard]] int64_t free_bytes() const override { return free; }
  std::unique_ptr<Stream> make_stream() override { return cpu_->make_stream(); }
  std::unique_ptr<Event> make_event() override { return cpu_->make_event(); }
  Arena make_arena(ArenaPurpose purpose, size_t bytes) override {
    return cpu_->make_arena(purpose, bytes);
  }
  PinnedBuffer make_pinned(size_t bytes) override { return cpu_->make_pinned(bytes); }

  int64_t free = int64_t{1} << 30;

 private:
  std::unique_ptr<cpu::CpuDevice> cpu_;
};

// Replaced attention: counts its calls.
class CountingBackend final : public AttentionBackend {
 public:
  [[nodiscard]] const AttentionCapabilities& capabilities() const override { return capabilities_; }
  void allocate(Arena&, Device&, const AttentionLimits&) override {}
  AttentionMetadata build_metadata(Stream&,
                                   const KvGroupSpec&,
                                   const AttentionMetadata& base) override {
    return base;
  }
  void forward(Stream&, const AttentionCall& call, const AttentionMetadata& metadata) override {
    calls.push_back({call.num_heads, metadata.batch.num_rows});
  }
  struct Call {
    int32_t num_heads;  // as recorded
    int32_t num_rows;   // of this step
  };
  std::vector<Call> calls;

 private:
  AttentionCapabilities capabilities_;
};

class GraphCacheTest : public testing::Test {
 protected:
  // Adds to a counter on the stream; takes `bytes` of the device when it is captured.
  auto adds(int32_t* counter, int64_t bytes = 0) {
    return [this, counter, bytes] {
      ++num_enqueued_;
      device_.free -= bytes;
      cpu::as_cpu(*stream_).launch("add", [counter](cpu::ComputePool&) { ++*counter; });
    };
  }

  MeteredDevice device_;
  std::unique_ptr<Stream> stream_ = device_.make_stream();
  int32_t num_enqueued_ = 0;
};

TEST_F(GraphCacheTest, EagerOnceThenCapturedThenReplayed) {
  GraphCache graphs(device_, 1 << 20, 0);
  int32_t counter = 0;
  for (int32_t use = 1; use <= 5; ++use) {
    graphs.run_full(*stream_, {GraphMode::kFull, 8, 8, 8, 1}, adds(&counter));
    EXPECT_EQ(counter, use);  // a capture runs nothing by itself
    EXPECT_EQ(num_enqueued_, std::min(use, 2));
  }
  EXPECT_EQ(graphs.stats().eager, 1);
  EXPECT_EQ(graphs.stats().full, 4);
  EXPECT_EQ(graphs.stats().captures, 1);
}

TEST_F(GraphCacheTest, KeysAreApart) {
  GraphCache graphs(device_, 1 << 20, 0);
  const GraphKey keys[] = {{GraphMode::kFull, 8, 8, 8, 1, 0},
                           {GraphMode::kFull, 16, 8, 8, 1, 0},
                           {GraphMode::kFull, 8, 4, 8, 1, 0},
                           {GraphMode::kFull, 8, 8, 4, 1, 0},
                           {GraphMode::kFull, 8, 8, 8, 0, 0},
                           {GraphMode::kFull, 8, 8, 8, 1, 3},
                           {GraphMode::kFull, 8, 8, 8, 1, uint64_t{3} << 40}};
  int32_t counters[std::size(keys)] = {};
  for (int32_t use = 0; use < 3; ++use) {
    for (size_t i = 0; i < std::size(keys); ++i) {
      graphs.run_full(*stream_, keys[i], adds(&counters[i]));
    }
  }
  for (const int32_t counter : counters) {
    EXPECT_EQ(counter, 3);
  }
  EXPECT_EQ(graphs.stats().captures, 7);
}

// A variant says which of many features are on, without a limit of bits.
TEST(GraphKeyVariant, TellsEverySetOfFeaturesApart) {
  std::set<uint64_t> variants;
  constexpr uint32_t kFeatures = 12;
  for (uint32_t set = 0; set < (1U << kFeatures); ++set) {
    uint64_t variant = 5;
    for (uint32_t feature = 0; feature < kFeatures; ++feature) {
      variant = mix_hash(variant, (set >> feature) & 1U);
    }
    variants.insert(variant);
  }
  EXPECT_EQ(variants.size(), 1U << kFeatures);
}

TEST_F(GraphCacheTest, CapturesStayWithinTheReservation) {
  constexpr int64_t kCapture = 300;
  GraphCache graphs(device_, 1000, kCapture);
  int32_t counter = 0;
  for (int32_t use = 0; use < 3; ++use) {
    for (int32_t size = 1; size <= 6; ++size) {
      // Only a capture takes memory: the first time a key runs as it is.
      graphs.run_full(*stream_, {GraphMode::kFull, size}, adds(&counter, use > 0 ? kCapture : 0));
      EXPECT_LE(graphs.stats().bytes, 1000);
    }
  }
  EXPECT_EQ(counter, 18);
  EXPECT_EQ(graphs.stats().captures, 3);
  EXPECT_EQ(graphs.stats().bytes, 3 * kCapture);
  EXPECT_EQ(graphs.stats().eager, 6 + 3 + 3);  // first uses, and three sizes without memory
}

TEST_F(GraphCacheTest, WithoutAReservationEverythingIsEager) {
  GraphCache graphs(device_, 0, 1);
  int32_t counter = 0;
  for (int32_t use = 0; use < 4; ++use) {
    graphs.run_full(*stream_, {GraphMode::kFull, 8}, adds(&counter));
  }
  EXPECT_EQ(counter, 4);
  EXPECT_EQ(graphs.stats().eager, 4);
}

// A capture that took more than reckoned is what the next one is reckoned to take.
TEST_F(GraphCacheTest, TheLargestCaptureSoFarDecides) {
  GraphCache graphs(device_, 1000, 100);
  int32_t counter = 0;
  const auto use = [&](int32_t size, int64_t bytes) {
    graphs.run_full(*stream_, {GraphMode::kFull, size}, adds(&counter));
    graphs.run_full(*stream_, {GraphMode::kFull, size}, adds(&counter, bytes));
  };
  use(1, 600);
  use(2, 0);
  EXPECT_EQ(graphs.stats().captures, 1);
}

TEST_F(GraphCacheTest, PiecesRunAttentionOfTheStepBetweenThem) {
  GraphCache graphs(device_, 1 << 20, 0);
  CountingBackend backend;
  int32_t counter = 0;
  for (int32_t use = 1; use <= 4; ++use) {
    ForwardGroup group{&backend, {}};
    group.metadata.batch.num_rows = 10 * use;
    ForwardContext context;
    context.groups = {&group, 1};
    // Two layers: work, attention, work, attention, work.
    const auto body = [&] {
      for (int32_t layer = 1; layer <= 2; ++layer) {
        adds (&counter)();
        AttentionCall call;
        call.num_heads = layer;
        if (context.sink != nullptr) {
          context.sink->attention(*stream_, 0, call);
        } else {
          backend.forward(*stream_, call, group.metadata);
        }
      }
      adds (&counter)();
    };
    backend.calls.clear();
    graphs.run_piecewise(*stream_, {GraphMode::kPiecewise, 16}, context, body);
    EXPECT_EQ(counter, 3 * use);
    ASSERT_EQ(backend.calls.size(), 2U);
    EXPECT_EQ(backend.calls[0].num_heads, 1);
    EXPECT_EQ(backend.calls[1].num_heads, 2);
    EXPECT_EQ(backend.calls[0].num_rows, 10 * use);
    EXPECT_EQ(context.sink, nullptr);
  }
  EXPECT_EQ(graphs.stats().eager, 1);
  EXPECT_EQ(graphs.stats().piecewise, 3);
  EXPECT_EQ(graphs.stats().captures, 1);
}

}  // namespace
}  // namespace warprow
