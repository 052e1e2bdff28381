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

GraphOptions reserve(int64_t bytes, int64_t forward_bytes, int64_t sample_bytes = 0) {
  GraphOptions options;
  options.reserved_bytes = bytes;
  options.capture_bytes = forward_bytes;
  options.sample_bytes = sample_bytes;
  return options;
}

// A CPU device whose free memory the test sets. Like a driver it may keep a destroyed graph's memory for the next
// graph.
class MeteredDevice final : public Device {
 public:
  explicit MeteredDevice(cpu::CpuStreamMode mode = cpu::CpuStreamMode::kInline) {
    cpu::CpuDeviceOptions options;
    options.mode = mode;
    options.num_threads = 1;
    cpu_ = cpu::make_cpu_device(options);
  }
  [[nodiscard]] const DeviceFacts& facts() const override { return cpu_->facts(); }
  [[nodiscard]] int64_t free_bytes() const override { return free; }
  std::unique_ptr<Stream> make_stream() override;
  std::unique_ptr<Event> make_event() override { return cpu_->make_event(); }
  Arena make_arena(ArenaPurpose purpose, size_t bytes) override {
    return cpu_->make_arena(purpose, bytes);
  }
  PinnedBuffer make_pinned(size_t bytes) override { return cpu_->make_pinned(bytes); }

  void take(int64_t bytes) {
    const int64_t from_kept = std::min(kept, bytes);
    kept -= from_kept;
    free -= bytes - from_kept;
  }
  void give(int64_t bytes) { (keeps ? kept : free) += bytes; }
  void set_gate(bool open) { cpu_->set_gate(open); }

  int64_t free = int64_t{1} << 30;
  bool keeps = false;
  int64_t kept = 0;

 private:
  std::unique_ptr<cpu::CpuDevice> cpu_;
};

// A captured graph that holds memory of its device during its life.
struct MeteredGraph final : Graph {
  MeteredGraph(MeteredDevice& of, std::unique_ptr<Graph> recorded, int64_t taken)
      : device(of), commands(std::move(recorded)), bytes(taken) {
    device.take(bytes);
  }
  ~MeteredGraph() override { device.give(bytes); }
  MeteredGraph(const MeteredGraph&) = delete;
  MeteredGraph& operator=(const MeteredGraph&) = delete;
  MeteredDevice& device;
  std::unique_ptr<Graph> commands;
  int64_t bytes;
};

class MeteredStream final : public Stream {
 public:
  MeteredStream(MeteredDevice& device, std::unique_ptr<Stream> stream)
      : device_(device), stream_(std::move(stream)) {}
  [[nodiscard]] Device& device() const override { return device_; }
  void copy_to_device(void* dst, const void* src, size_t bytes) override {
    stream_->copy_to_device(dst, src, bytes);
  }
  void copy_to_host(void* dst, const void* src, size_t bytes) override {
    stream_->copy_to_host(dst, src, bytes);
  }
  void fill(void* dst, int byte, size_t bytes) override { stream_->fill(dst, byte, bytes); }
  void record(Event& event) override { stream_->record(event); }
  void wait(Event& event) override { stream_->wait(event); }
  void synchronize() override { stream_->synchronize(); }
  void begin_capture() override { stream_->begin_capture(); }
  std::unique_ptr<Graph> end_capture() override {
    return std::make_unique<MeteredGraph>(device_, stream_->end_capture(), next_graph_bytes);
  }
  void launch_graph(Graph& graph) override {
    stream_->launch_graph(*static_cast<MeteredGraph&>(graph).commands);
  }
  [[nodiscard]] Stream& commands() { return *stream_; }

  int64_t next_graph_bytes = 0;

 private:
  MeteredDevice& device_;
  std::unique_ptr<Stream> stream_;
};

std::unique_ptr<Stream> MeteredDevice::make_stream() {
  return std::make_unique<MeteredStream>(*this, cpu_->make_stream());
}

// A stand-in for attention that counts its calls.
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
    int32_t num_heads;  // captured
    int32_t num_rows;   // of this step
  };
  std::vector<Call> calls;

 private:
  AttentionCapabilities capabilities_;
};

class GraphCacheTest : public ::testing::Test {
 protected:
  explicit GraphCacheTest(cpu::CpuStreamMode mode = cpu::CpuStreamMode::kInline) : device_(mode) {}

  // Adds to a counter on the stream. Its capture takes `bytes` of device memory.
  auto adds(int32_t* counter, int64_t bytes = 0) {
    return [this, counter, bytes] {
      ++num_enqueued_;
      auto& stream = static_cast<MeteredStream&>(*stream_);
      stream.next_graph_bytes = bytes;
      cpu::as_cpu(stream.commands()).launch("add", [counter](cpu::ComputePool&) { ++*counter; });
    };
  }
  // Runs a key several times. Its graph takes kGraph bytes.
  void use(GraphCache& graphs, const GraphKey& key, int32_t times = 1) {
    for (int32_t i = 0; i < times; ++i) {
      graphs.run_full(*stream_, key, adds(&num_run_, kGraph));
    }
  }
  // Runs the key once more and returns whether that was a replay.
  bool replays(GraphCache& graphs, const GraphKey& key) {
    const int64_t before = graphs.stats().full;
    const int64_t captures = graphs.stats().captures;
    use(graphs, key);
    return graphs.stats().full > before && graphs.stats().captures == captures;
  }
  static GraphKey forward(int32_t num_toks) { return {GraphMode::kFull, num_toks, num_toks}; }
  static GraphKey sampling(int32_t num_logits) { return {GraphMode::kFull, 0, 0, num_logits}; }

  static constexpr int64_t kGraph = 300;
  MeteredDevice device_;
  std::unique_ptr<Stream> stream_ = device_.make_stream();
  int32_t num_enqueued_ = 0;
  int32_t num_run_ = 0;
};

TEST_F(GraphCacheTest, EagerOnceThenCapturedThenReplayed) {
  GraphCache graphs(device_, reserve(1 << 20, 0));
  int32_t counter = 0;
  for (int32_t use = 1; use <= 5; ++use) {
    graphs.run_full(*stream_, {GraphMode::kFull, 8, 8, 8, 1}, adds(&counter));
    EXPECT_EQ(counter, use);  // a capture does not execute anything
    EXPECT_EQ(num_enqueued_, std::min(use, 2));
  }
  EXPECT_EQ(graphs.stats().eager, 1);
  EXPECT_EQ(graphs.stats().full, 4);
  EXPECT_EQ(graphs.stats().captures, 1);
}

TEST_F(GraphCacheTest, KeysAreApart) {
  GraphCache graphs(device_, reserve(1 << 20, 0));
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

// A variant identifies a set of features; the number of features is not limited by its bits.
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
  GraphCache graphs(device_, reserve(1000, kCapture));
  int32_t counter = 0;
  for (int32_t use = 0; use < 3; ++use) {
    for (int32_t size = 1; size <= 6; ++size) {
      // Only a capture takes memory. The first run of a key is eager.
      graphs.run_full(*stream_, {GraphMode::kFull, size}, adds(&counter, use > 0 ? kCapture : 0));
      EXPECT_LE(graphs.stats().bytes, 1000);
    }
  }
  EXPECT_EQ(counter, 18);
  EXPECT_EQ(graphs.stats().captures, 3);
  EXPECT_EQ(graphs.stats().bytes, 3 * kCapture);
  EXPECT_EQ(graphs.stats().eager, 6 + 3 + 3);  // first runs, and three sizes without memory
}

TEST_F(GraphCacheTest, WithoutAReservationEverythingIsEager) {
  GraphCache graphs(device_, reserve(0, 1));
  int32_t counter = 0;
  for (int32_t use = 0; use < 4; ++use) {
    graphs.run_full(*stream_, {GraphMode::kFull, 8}, adds(&counter));
  }
  EXPECT_EQ(counter, 4);
  EXPECT_EQ(graphs.stats().eager, 4);
}

// After a capture that took more than estimated, its size is the new estimate.
TEST_F(GraphCacheTest, TheLargestCaptureSoFarDecides) {
  GraphCache graphs(device_, reserve(1000, 100));
  int32_t counter = 0;
  const auto use = [&](int32_t size, int64_t bytes) {
    graphs.run_full(*stream_, {GraphMode::kFull, size}, adds(&counter));
    graphs.run_full(*stream_, {GraphMode::kFull, size}, adds(&counter, bytes));
  };
  use(1, 600);
  use(2, 0);
  EXPECT_EQ(graphs.stats().captures, 1);
}

// There is room for three graphs. The fourth key evicts the least used one once it is used more than twice as often.
// The evicted key then runs eagerly.
TEST_F(GraphCacheTest, TheLeastUsedGoes) {
  GraphCache graphs(device_, reserve(3 * kGraph, kGraph));
  use(graphs, forward(1), 20);
  use(graphs, forward(2), 4);
  use(graphs, forward(3), 30);
  use(graphs, forward(4), 8);
  EXPECT_EQ(graphs.stats().captures, 3);
  EXPECT_EQ(graphs.stats().evictions, 0);
  use(graphs, forward(4));  // the ninth use: evicts
  EXPECT_EQ(graphs.stats().evictions, 1);
  EXPECT_EQ(graphs.stats().captures, 3);
  use(graphs, forward(4));  // captures
  EXPECT_EQ(graphs.stats().captures, 4);
  EXPECT_EQ(graphs.stats().bytes, 3 * kGraph);
  EXPECT_TRUE(replays(graphs, forward(4)));
  EXPECT_TRUE(replays(graphs, forward(1)));
  EXPECT_TRUE(replays(graphs, forward(3)));
  EXPECT_FALSE(replays(graphs, forward(2)));
  EXPECT_EQ(num_run_, 20 + 4 + 30 + 10 + 4);
}

TEST_F(GraphCacheTest, KeysInTurnDoNotEvictEachOther) {
  GraphCache graphs(device_, reserve(3 * kGraph, kGraph));
  constexpr int32_t kRounds = 3 * GraphCache::kAgeing;
  for (int32_t round = 0; round < kRounds; ++round) {
    for (int32_t size = 1; size <= 4; ++size) {
      use(graphs, forward(size));
    }
  }
  EXPECT_EQ(graphs.stats().captures, 3);
  EXPECT_EQ(graphs.stats().evictions, 0);
  EXPECT_EQ(graphs.stats().full, 3 * (kRounds - 1));
}

// A graph that was used often in the past is evicted for one that is in use now.
TEST_F(GraphCacheTest, UsesAge) {
  GraphCache graphs(device_, reserve(kGraph, kGraph));
  use(graphs, forward(1), 20 * GraphCache::kAgeing);
  use(graphs, forward(2), 3 * GraphCache::kAgeing);
  EXPECT_EQ(graphs.stats().evictions, 1);
  EXPECT_TRUE(replays(graphs, forward(2)));
}

TEST_F(GraphCacheTest, AForwardTakesTheRoomOfSampling) {
  GraphCache graphs(device_, reserve(4 * kGraph, kGraph, kGraph));
  use(graphs, forward(1), 3);
  use(graphs, sampling(1), 100);
  use(graphs, sampling(2), 50);
  use(graphs, sampling(3), 70);
  EXPECT_EQ(graphs.stats().captures, 4);
  use(graphs, forward(2), 3);  // eager, evicts, captures
  EXPECT_EQ(graphs.stats().evictions, 1);
  EXPECT_TRUE(replays(graphs, forward(1)));
  EXPECT_TRUE(replays(graphs, forward(2)));
  EXPECT_TRUE(replays(graphs, sampling(1)));
  EXPECT_FALSE(replays(graphs, sampling(2)));
  EXPECT_TRUE(replays(graphs, sampling(3)));
}

TEST_F(GraphCacheTest, SamplingNeverTakesTheRoomOfAForward) {
  GraphCache graphs(device_, reserve(2 * kGraph, kGraph, kGraph));
  use(graphs, forward(1), 2);
  use(graphs, forward(2), 2);
  for (int32_t n = 1; n <= 50; ++n) {
    use(graphs, sampling(n), 50);
  }
  EXPECT_EQ(graphs.stats().evictions, 0);
  EXPECT_TRUE(replays(graphs, forward(1)));
  EXPECT_TRUE(replays(graphs, forward(2)));
}

// A forward graph larger than one sampling graph evicts as many as it needs, and none if that is not enough.
TEST_F(GraphCacheTest, EvictsAsManyAsNeededOrNone) {
  constexpr int64_t kForward = 2 * kGraph;
  GraphCache graphs(device_, reserve(3 * kGraph, kForward, kGraph));
  use(graphs, sampling(1), 9);
  use(graphs, sampling(2), 5);
  use(graphs, sampling(3), 7);
  use(graphs, forward(1), 2);
  EXPECT_EQ(graphs.stats().evictions, 2);
  EXPECT_TRUE(replays(graphs, sampling(1)));

  GraphCache small(device_, reserve(kGraph, kForward, kGraph));
  use(small, sampling(1), 5);
  use(small, forward(1), 50);
  EXPECT_EQ(small.stats().evictions, 0);
  EXPECT_TRUE(replays(small, sampling(1)));
}

// A driver keeps the memory of destroyed graphs. It does not grow, and new graphs use it again.
TEST_F(GraphCacheTest, RoomThatTheDriverKeepsIsUsedAgain) {
  device_.keeps = true;
  const int64_t free = device_.free;
  GraphCache graphs(device_, reserve(3 * kGraph, kGraph));
  for (int32_t size = 1; size <= 40; ++size) {
    use(graphs, forward(size), 5 * GraphCache::kAgeing);
    EXPECT_TRUE(replays(graphs, forward(size)));
    EXPECT_LE(graphs.stats().bytes, 3 * kGraph);
    EXPECT_EQ(free - device_.free, graphs.stats().bytes);
  }
  EXPECT_EQ(graphs.stats().captures, 40);
  EXPECT_EQ(graphs.stats().evictions, 37);
}

// After a graph that exceeded its estimate and the reservation, nothing is captured, and nothing is evicted because
// that might free nothing.
TEST_F(GraphCacheTest, BeyondTheReservationNothingIsEvicted) {
  GraphCache graphs(device_, reserve(2 * kGraph, kGraph / 2));
  int32_t counter = 0;
  for (int32_t i = 0; i < 2; ++i) {
    graphs.run_full(*stream_, forward(1), adds(&counter, 3 * kGraph));
  }
  use(graphs, forward(2), 50);
  EXPECT_EQ(graphs.stats().captures, 1);
  EXPECT_EQ(graphs.stats().evictions, 0);
}

class GraphCacheInFlight : public GraphCacheTest {
 protected:
  GraphCacheInFlight() : GraphCacheTest(cpu::CpuStreamMode::kThreaded) {}
};

// A graph is destroyed only after the device has passed its last launch.
TEST_F(GraphCacheInFlight, AnEvictedGraphLivesUntilTheStreamHasPassedIt) {
  GraphCache graphs(device_, reserve(kGraph, kGraph));
  use(graphs, forward(1), 2);
  const int64_t free = device_.free;
  device_.set_gate(false);
  use(graphs, forward(1));      // in flight
  use(graphs, forward(2), 20);  // would evict it, but cannot be captured yet
  EXPECT_EQ(graphs.stats().evictions, 1);
  EXPECT_EQ(graphs.stats().captures, 1);
  EXPECT_EQ(graphs.stats().bytes, kGraph);
  EXPECT_EQ(device_.free, free);
  device_.set_gate(true);
  stream_->synchronize();
  use(graphs, forward(2));
  EXPECT_EQ(graphs.stats().captures, 2);
  EXPECT_EQ(graphs.stats().evictions, 1);
  stream_->synchronize();
  EXPECT_EQ(num_run_, 3 + 21);
}

TEST_F(GraphCacheTest, PiecesRunAttentionOfTheStepBetweenThem) {
  GraphCache graphs(device_, reserve(1 << 20, 0));
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
