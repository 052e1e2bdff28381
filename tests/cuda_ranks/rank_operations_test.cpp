// SPDX-License-Identifier: Apache-2.0
// Collectives of GPU ranks against sums and copies on the CPU, bit by bit. Ranks are threads. Each has a GPU of
// its own; groups of more ranks than GPUs share them. On one GPU alone, ranks would wait for each other without an end.
#include "tests/comm/rank_operations.h"

#include "comm/cuda/cuda_ranks.h"
#include "comm/cuda/peer_sizes.h"
#include "comm/shared_host_group.h"
#include "comm/shared_memory.h"
#include "device/cuda_device.h"
#include "device/graph.h"
#include "kernels/linear/half_norm.h"
#include "tests/support/peer_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace warprow::test {
namespace {

void as_threads(int32_t size, const std::function<void(int32_t rank)>& body) {
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
}

// An operation with its memory on a GPU.
class GpuOperation {
 public:
  GpuOperation(const Operation& op, GroupPlace place, Arena& arena)
      : op_(op),
        expectation_(expect(op, place)),
        in_(arena.alloc<float>(std::ssize(expectation_.in))),
        out_(arena.alloc<float>(std::ssize(expectation_.out))) {}

  void load(Stream& stream) {
    copy(stream, in_, expectation_.in);
    if (is_in_place(op_.kind)) {
      copy(stream, out_, expectation_.in);
    } else {
      stream.fill(out_, 0xff, expectation_.out.size() * sizeof(float));
    }
  }
  void enqueue(Communicator& comm, Stream& stream) {
    enqueue_operation(comm, stream, op_, in_, out_);
  }
  [[nodiscard]] std::string wrong(Stream& stream, GroupPlace place) const {
    std::vector<float> got(expectation_.out.size());
    stream.copy_to_host(got.data(), out_, got.size() * sizeof(float));
    stream.synchronize();
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::memcmp(&got[i], &expectation_.out[i], sizeof(float)) != 0) {
        return fmt::format("{} [{}, {}] from {} to {} on rank {} of {}: element {} is {}, not {}",
                           name_of(op_.kind),
                           op_.rows,
                           op_.width,
                           op_.from,
                           op_.to,
                           place.rank,
                           place.size,
                           i,
                           got[i],
                           expectation_.out[i]);
      }
    }
    return "";
  }

 private:
  static void copy(Stream& stream, float* to, const std::vector<float>& from) {
    stream.copy_to_device(to, from.data(), from.size() * sizeof(float));
  }

  Operation op_;
  Expectation expectation_;
  float* in_;
  float* out_;
};

// A rank's GPU.
struct RankGpu {
  explicit RankGpu(int32_t rank, size_t arena_bytes)
      : device(cuda::make_cuda_device(PeerRanks::gpu_of(rank))),
        stream(device->make_stream()),
        arena(device->make_arena(ArenaPurpose::kWorkspace, arena_bytes)) {}
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Arena arena;
};

// All are in flight at once. Where ranks share a GPU there is one at a time: a kernel that begins early could take the room
// that another rank's blocks need.
std::string run_at_once(Communicator& comm,
                        RankGpu& gpu,
                        const std::vector<Operation>& operations) {
  gpu.arena.reset();
  std::vector<GpuOperation> running;
  for (const Operation& op : operations) {
    running.emplace_back(op, comm.place(), gpu.arena);
    running.back().load(*gpu.stream);
  }
  gpu.stream->synchronize();
  for (GpuOperation& op : running) {
    op.enqueue(comm, *gpu.stream);
    if (num_gpus() < comm.place().size) {
      gpu.stream->synchronize();
    }
  }
  gpu.stream->synchronize();
  for (const GpuOperation& op : running) {
    if (std::string wrong = op.wrong(*gpu.stream, comm.place()); !wrong.empty()) {
      return wrong;
    }
  }
  return "";
}

std::string replay(Communicator& comm,
                   RankGpu& gpu,
                   const std::vector<Operation>& operations,
                   int32_t times) {
  gpu.arena.reset();
  std::vector<GpuOperation> recorded;
  for (const Operation& op : operations) {
    recorded.emplace_back(op, comm.place(), gpu.arena);
  }
  gpu.stream->begin_capture();
  for (GpuOperation& op : recorded) {
    op.enqueue(comm, *gpu.stream);
  }
  const auto graph = gpu.stream->end_capture();
  for (int32_t time = 0; time < times; ++time) {
    for (GpuOperation& op : recorded) {
      op.load(*gpu.stream);
    }
    gpu.stream->launch_graph(*graph);
    gpu.stream->synchronize();
    for (const GpuOperation& op : recorded) {
      if (std::string wrong = op.wrong(*gpu.stream, comm.place()); !wrong.empty()) {
        return fmt::format("launch {}: {}", time, wrong);
      }
    }
  }
  return "";
}

constexpr size_t kArenaBytes = size_t{256} << 20;

class PeerOperations : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (num_gpus() < 2) {
      GTEST_SKIP() << "needs two GPUs";
    }
    load_kernels();
  }

  // Most values of an operation: where ranks share a GPU, all of their blocks must fit on it.
  static int64_t most_values() { return GetParam() == 2 ? 1500000 : 100000; }

 private:
  // The driver may wait for a GPU to be idle before it loads a kernel, and another rank's kernel waits for this one. So
  // kernels are loaded first, by a group that was aborted.
  static void load_kernels() {
    for (const int32_t size : {2, 3}) {
      PeerRanks ranks(size, cuda::tensor_sizes());
      ranks.abort();
      for (int32_t gpu = 0; gpu < num_gpus(); ++gpu) {
        RankGpu on(gpu, kArenaBytes);
        const auto floats = [&](int64_t n) { return make_view(on.arena.alloc<float>(n), 1, n); };
        const auto comm = ranks.join(0);
        for (const int64_t n : {int64_t{100}, cuda::kMostSmall * 2}) {
          comm->all_reduce(*on.stream, floats(n));
        }
        comm->receive(*on.stream, on.arena.alloc_bytes(64), 64, 1);
        const HalfNorm half{make_view(static_cast<const float*>(floats(64).data), 64),
                            {DType::kBF16, on.arena.alloc<uint16_t>(64), 1, 64},
                            on.arena.alloc<float>(4)};
        cuda::begin_norm(
            *on.stream, make_view(static_cast<const float*>(floats(64).data), 1, 64), half);
        on.stream->synchronize();
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, PeerOperations, ::testing::Values(2, 3, 4));

TEST_P(PeerOperations, RandomOnesHaveTheBitsOfTheCpu) {
  const int32_t size = GetParam();
  const PeerRanks ranks(size, cuda::tensor_sizes());
  const std::vector<Operation> all =
      random_operations(7 + static_cast<uint64_t>(size), size, 400, most_values());
  as_threads(size, [&](int32_t rank) {
    RankGpu gpu(rank, kArenaBytes);
    const auto comm = ranks.join(rank);
    for (size_t first = 0; first < all.size(); first += 20) {
      const std::vector<Operation> some(all.begin() + static_cast<ptrdiff_t>(first),
                                        all.begin() + static_cast<ptrdiff_t>(first) + 20);
      EXPECT_EQ(run_at_once(*comm, gpu, some), "");
    }
  });
}

TEST_P(PeerOperations, GraphsReplay) {
  const int32_t size = GetParam();
  const PeerRanks ranks(size, cuda::tensor_sizes());
  const std::vector<Operation> operations = random_operations(5, size, 30, most_values() / 10);
  as_threads(size, [&](int32_t rank) {
    RankGpu gpu(rank, kArenaBytes);
    const auto comm = ranks.join(rank);
    EXPECT_EQ(replay(*comm, gpu, operations, 10), "");
  });
}

// At the ends of chunks and where the kernel changes; a row has the same bits in a sum of any size.
TEST_P(PeerOperations, SumsOfEverySize) {
  const int32_t size = GetParam();
  const PeerRanks ranks(size, cuda::tensor_sizes());
  std::vector<Operation> operations;
  const int64_t turn = cuda::kMostSmall / (size - 1);
  for (const int64_t n : {int64_t{1},
                          int64_t{3},
                          int64_t{4},
                          int64_t{2047},
                          int64_t{2048},
                          int64_t{2052},
                          int64_t{4097},
                          turn,
                          turn + 1,
                          turn + 4,
                          turn + 8192,
                          3 * turn + 4}) {
    operations.push_back({.kind = OperationKind::kAllReduce, .rows = 1, .width = n, .seed = 3});
  }
  as_threads(size, [&](int32_t rank) {
    RankGpu gpu(rank, kArenaBytes);
    const auto comm = ranks.join(rank);
    EXPECT_EQ(run_at_once(*comm, gpu, operations), "");
  });
}

// Adds to the residual stream and begins the next norm, with the bits of the separate operations.
TEST_P(PeerOperations, AddSumBeginsTheNorm) {
  const int32_t size = GetParam();
  const PeerRanks ranks(size, cuda::tensor_sizes());
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 64},
                                    {1, 4096},
                                    {8, 4096},
                                    {9, 4096},
                                    {32, 4096},
                                    {40, 1088},
                                    {100, size == 2 ? 4096 : 704}}) {
    as_threads(size, [&, rows = rows, width = width](int32_t rank) {
      SCOPED_TRACE(fmt::format("{} rows of {}", rows, width));
      RankGpu gpu(rank, kArenaBytes);
      const auto comm = ranks.join(rank);
      const int64_t n = rows * width;
      const Operation op{
          .kind = OperationKind::kAllReduce, .rows = rows, .width = width, .seed = 11};
      const Expectation sum = expect(op, comm->place());
      const std::vector<float> before = random_values(99, 0, n);
      const auto put = [&](const std::vector<float>& values) {
        auto* const at = gpu.arena.alloc<float>(std::ssize(values));
        gpu.stream->copy_to_device(at, values.data(), values.size() * sizeof(float));
        gpu.stream->synchronize();
        return at;
      };
      const auto get = [&](const auto* at, int64_t count) {
        std::vector<std::remove_cvref_t<decltype(*at)>> values(static_cast<size_t>(count));
        gpu.stream->copy_to_host(values.data(), at, values.size() * sizeof values[0]);
        gpu.stream->synchronize();
        return values;
      };
      const int64_t num_squares = rows * (width / 64) * (rows <= kMaxQuarteredRows ? 4 : 1);
      const auto half_norm = [&](const float* weight) {
        return HalfNorm{make_view(weight, width),
                        {DType::kBF16, gpu.arena.alloc<uint16_t>(n), rows, width},
                        gpu.arena.alloc<float>(num_squares)};
      };
      const float* const weight = put(random_values(5, 0, width));
      float* const product = put(sum.in);
      float* const residual = put(before);
      const HalfNorm fused = half_norm(weight);
      const HalfNorm separate = half_norm(weight);
      comm->add_sum(
          *gpu.stream, make_view(product, rows, width), make_view(residual, rows, width), &fused);
      // A copy that waits for other ranks would keep them from a GPU they share.
      gpu.stream->synchronize();
      cuda::begin_norm(
          *gpu.stream, make_view(static_cast<const float*>(residual), rows, width), separate);
      std::vector<float> expected = before;
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += sum.out[i];
      }
      EXPECT_TRUE(get(residual, n) == expected);
      const auto rows_of = [&](const HalfNorm& half) {
        return get(static_cast<const uint16_t*>(half.rows.data), n);
      };
      EXPECT_TRUE(rows_of(fused) == rows_of(separate));
      EXPECT_TRUE(get(fused.squares, num_squares) == get(separate.squares, num_squares));
    });
  }
}

// The results of as many steps as can be in flight lie unread, and then arrive in order.
TEST_P(PeerOperations, ASendBetweenStagesDoesNotWaitForTheOther) {
  const int32_t size = GetParam();
  const PeerRanks ranks(size, cuda::stage_sizes(size));
  constexpr size_t kBytes = size_t{1280} << 10;  // kMostResultBytes
  RankGpu sender(size - 1, kArenaBytes);
  RankGpu receiver(0, kArenaBytes);
  const auto last = ranks.join(size - 1);
  const auto first = ranks.join(0);
  sender.device->use_here();
  std::byte* const sent = sender.arena.alloc_bytes(kBytes);
  for (int32_t step = 0; step <= size; ++step) {
    sender.stream->fill(sent, step + 1, kBytes);
    last->send(*sender.stream, sent, kBytes, 0);
    sender.stream->synchronize();
  }
  receiver.device->use_here();
  std::byte* const received = receiver.arena.alloc_bytes(kBytes);
  std::vector<std::byte> got(kBytes);
  for (int32_t step = 0; step <= size; ++step) {
    first->receive(*receiver.stream, received, kBytes, size - 1);
    receiver.stream->copy_to_host(got.data(), received, kBytes);
    receiver.stream->synchronize();
    EXPECT_EQ(std::ranges::count(got, std::byte(step + 1)), std::ssize(got)) << step;
  }
}

// Kernels that wait for a rank which does not come end after an abort.
TEST_P(PeerOperations, AnAbortEndsEveryWait) {
  const int32_t size = GetParam();
  PeerRanks ranks(size, cuda::tensor_sizes());
  RankGpu gpu(0, kArenaBytes);
  const auto comm = ranks.join(0);
  float* const values = gpu.arena.alloc<float>(cuda::kMostSmall * 2);
  const auto start = std::chrono::steady_clock::now();
  std::jthread later([&ranks] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ranks.abort();
  });
  comm->all_reduce(*gpu.stream, make_view(values, 1, int64_t{4096}));
  comm->all_reduce(*gpu.stream, make_view(values, 1, cuda::kMostSmall * 2));
  comm->all_gather(*gpu.stream,
                   reinterpret_cast<const std::byte*>(values),
                   reinterpret_cast<std::byte*>(values + 4096),
                   4096);
  comm->receive(*gpu.stream, reinterpret_cast<std::byte*>(values), 4096, 1);
  gpu.stream->synchronize();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// join_cuda_ranks over threads, each with its own GPU.
TEST(NcclOperations, RandomOnesHaveTheBitsOfTheCpu) {
  const int32_t size = std::min(num_gpus(), 4);
  if (size < 2) {
    GTEST_SKIP() << "needs two GPUs";
  }
  const SharedMemory memory = SharedMemory::create(4096 + shared_host_group_bytes(size));
  AbortFlag& abort = AbortFlag::at(memory.data());
  const std::vector<Operation> operations = random_operations(9, size, 60, 500000);
  as_threads(size, [&](int32_t rank) {
    RankGpu gpu(rank, kArenaBytes);
    const auto all =
        make_shared_host_group({rank, size}, memory.data() + 4096, abort, std::chrono::seconds(60));
    const auto ranks = cuda::join_cuda_ranks(
        *gpu.device, rank_place(rank, size, 1), *all, cuda::GpuTransport::kNccl);
    EXPECT_EQ(run_at_once(*ranks->tensor(), gpu, operations), "");
    EXPECT_EQ(replay(*ranks->tensor(), gpu, {operations.begin(), operations.begin() + 20}, 5), "");
  });
}

// Steps of a pipeline: a stage receives the results of a step only some steps later, and the next stage has data for it in
// the meantime.
TEST(NcclStages, ResultsAreOnTheirWayWhileStagesWait) {
  if (num_gpus() < 2) {
    GTEST_SKIP() << "needs two GPUs";
  }
  const int32_t size = std::min(num_gpus(), 4);
  constexpr int32_t kSteps = 12;
  constexpr size_t kResidual = size_t{3} << 20;
  constexpr size_t kResults = size_t{1280} << 10;  // kMostResultBytes
  const SharedMemory memory = SharedMemory::create(4096 + shared_host_group_bytes(size));
  AbortFlag& abort = AbortFlag::at(memory.data());
  as_threads(size, [&](int32_t rank) {
    RankGpu gpu(rank, kArenaBytes);
    const auto all =
        make_shared_host_group({rank, size}, memory.data() + 4096, abort, std::chrono::seconds(60));
    const auto ranks = cuda::join_cuda_ranks(
        *gpu.device, rank_place(rank, 1, size), *all, cuda::GpuTransport::kNccl);
    EXPECT_EQ(ranks->tensor(), nullptr);
    Communicator& stages = *ranks->pipeline();
    std::byte* const residual = gpu.arena.alloc_bytes(kResidual);
    std::byte* const results = gpu.arena.alloc_bytes(kResults);
    const auto expect_all = [&](const std::byte* data, size_t bytes, int32_t value) {
      std::vector<std::byte> got(bytes);
      gpu.stream->copy_to_host(got.data(), data, bytes);
      gpu.stream->synchronize();
      EXPECT_EQ(std::ranges::count(got, std::byte(value)), std::ssize(got))
          << "stage " << rank << ", value " << value;
    };
    const bool is_last = rank == size - 1;
    for (int32_t step = 0; step < kSteps + size; ++step) {
      if (!is_last && step >= size) {  // of a step as long ago as there are stages
        stages.receive(*gpu.stream, results, kResults, size - 1);
        expect_all(results, kResults, 100 + step - size);
      }
      if (step >= kSteps) {
        continue;
      }
      if (rank > 0) {
        stages.receive(*gpu.stream, residual, kResidual, rank - 1);
        expect_all(residual, kResidual, step);
      }
      if (!is_last) {
        gpu.stream->fill(residual, step, kResidual);
        stages.send(*gpu.stream, residual, kResidual, rank + 1);
        continue;
      }
      for (int32_t stage = 0; stage < rank; ++stage) {
        gpu.stream->fill(results, 100 + step, kResults);
        stages.send(*gpu.stream, results, kResults, stage);
        gpu.stream->fill(results, 0, kResults);
      }
    }
    gpu.stream->synchronize();
  });
}

}  // namespace
}  // namespace warprow::test
