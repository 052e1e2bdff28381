// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/nccl_communicator.h"

#include "base/check.h"
#include "base/error.h"
#include "comm/cuda/nccl_library.h"
#include "comm/cuda/ordered_sum.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/device.h"
#include "kernels/linear/half_norm.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow::cuda {
namespace {

// Values that are gathered or exchanged at a time.
constexpr int64_t kScratchValues = int64_t{8} << 20;

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(GroupPlace place, const Nccl::Id& id, const AbortFlag& abort)
      : Communicator(place), nccl_(nccl()), abort_(abort) {
    const int result = nccl_.init_rank(&comm_, place.size, id, place.rank);
    if (result != 0) {
      throw StartupError(
          ErrorCode::kUnsupported,
          fmt::format("NCCL ({}) cannot start: {}", nccl_.path, nccl_.error_string(result)));
    }
    void* scratch = nullptr;
    if (cudaMalloc(&scratch, kScratchValues * sizeof(float)) != cudaSuccess) {
      throw StartupError(ErrorCode::kOutOfMemory, "the GPU has no memory left for NCCL");
    }
    scratch_ = static_cast<float*>(scratch);
  }
  // After an abort the other ranks may be gone, for whom destroy would wait.
  ~NcclCommunicator() override {
    if (abort_.raised()) {
      nccl_.abort(comm_);
    } else {
      nccl_.destroy(comm_);
    }
    cudaFree(scratch_);
  }

  void all_reduce(Stream& stream, View<float, 2> values) override {
    WR_CHECK(values.shape[0] <= 1 || values.stride[0] == values.shape[1],
             "rows of {} values are {} apart",
             values.shape[1],
             values.stride[0]);
    const int64_t n = values.shape[0] * values.shape[1];
    if (!runs(stream, n)) {
      return;
    }
    if (place().size == 2) {  // a sum of two has one order
      WR_NCCL(nccl_.all_reduce(values.data,
                               values.data,
                               static_cast<size_t>(n),
                               Nccl::kFloat,
                               Nccl::kSum,
                               comm_,
                               handle(stream)));
      return;
    }
    const int64_t most = kScratchValues / place().size;
    for (int64_t first = 0; first < n; first += most) {
      const int64_t count = std::min(most, n - first);
      WR_NCCL(nccl_.all_gather(values.data + first,
                               scratch_,
                               static_cast<size_t>(count),
                               Nccl::kFloat,
                               comm_,
                               handle(stream)));
      ordered_sum(stream, scratch_, place().size, count, values.data + first);
    }
  }

  void add_sum(Stream& stream,
               View<float, 2> product,
               View<float, 2> residual,
               const HalfNorm* next) override {
    Communicator::add_sum(stream, product, residual, nullptr);
    if (next != nullptr && !stream.discards()) {
      begin_norm(stream, residual, *next);
    }
  }

  void all_gather(Stream& stream, const std::byte* mine, std::byte* all, size_t bytes) override {
    if (runs(stream, static_cast<int64_t>(bytes))) {
      WR_NCCL(nccl_.all_gather(mine, all, bytes, Nccl::kBytes, comm_, handle(stream)));
    }
  }

  void broadcast(Stream& stream, std::byte* data, size_t bytes, int32_t root) override {
    WR_CHECK(root >= 0 && root < place().size, "root {} of {}", root, place().size);
    if (runs(stream, static_cast<int64_t>(bytes))) {
      WR_NCCL(nccl_.broadcast(data, data, bytes, Nccl::kBytes, root, comm_, handle(stream)));
    }
  }

  // Rows of `all` are taken some at a time: what comes from each rank lies in the scratch memory before it is spread.
  void exchange_columns(Stream& stream, View<const float, 2> mine, View<float, 2> all) override {
    WR_CHECK_EQ(all.shape[0], place().share(mine.shape[0]).size());
    WR_CHECK_LE(all.shape[1], place().size * mine.shape[1]);
    if (!runs(stream, mine.shape[0])) {
      return;
    }
    const int64_t part = mine.shape[1];
    const int64_t most = std::max<int64_t>(1, kScratchValues / (part * place().size));
    WR_CHECK_LE(part * place().size * most, kScratchValues);
    const int64_t largest = place().largest_share(mine.shape[0]);
    for (int64_t first = 0; first < largest; first += most) {
      exchange_rows(stream, mine, all, {first, std::min(first + most, largest)});
    }
  }

  void send(Stream& stream, const std::byte* data, size_t bytes, int32_t to) override {
    if (runs(stream, static_cast<int64_t>(bytes))) {
      WR_NCCL(nccl_.send(data, bytes, Nccl::kBytes, to, comm_, handle(stream)));
    }
  }
  void receive(Stream& stream, std::byte* data, size_t bytes, int32_t from) override {
    if (runs(stream, static_cast<int64_t>(bytes))) {
      WR_NCCL(nccl_.receive(data, bytes, Nccl::kBytes, from, comm_, handle(stream)));
    }
  }

 private:
  static cudaStream_t handle(Stream& stream) { return as_cuda(stream).handle(); }

  static bool runs(Stream& stream, int64_t size) {
    if (stream.discards() || size == 0) {
      return false;
    }
    WR_CHECK(stream.device().facts().kind == DeviceKind::kCuda, "GPU ranks on a CPU");
    return true;
  }

  // Rows [rows.begin, rows.end) of every rank's share.
  void exchange_rows(Stream& stream, View<const float, 2> mine, View<float, 2> all, Share rows) {
    const auto of_share = [&](int32_t rank) {
      const int64_t size = place().share_of(rank, mine.shape[0]).size();
      return Share{std::min(rows.begin, size), std::min(rows.end, size)};
    };
    const int64_t part = mine.shape[1];
    const Share own = of_share(place().rank);
    const int64_t room = (rows.end - rows.begin) * part;
    WR_CHECK(mine.shape[0] <= 1 || mine.stride[0] == part, "rows have gaps");
    WR_NCCL(nccl_.group_start());
    for (int32_t rank = 0; rank < place().size; ++rank) {
      const Share theirs = of_share(rank);
      const int64_t at = place().share_of(rank, mine.shape[0]).begin + theirs.begin;
      if (theirs.size() > 0) {
        WR_NCCL(nccl_.send(mine.row(at),
                           static_cast<size_t>(theirs.size() * part),
                           Nccl::kFloat,
                           rank,
                           comm_,
                           handle(stream)));
      }
      if (own.size() > 0) {
        WR_NCCL(nccl_.receive(scratch_ + rank * room,
                              static_cast<size_t>(own.size() * part),
                              Nccl::kFloat,
                              rank,
                              comm_,
                              handle(stream)));
      }
    }
    WR_NCCL(nccl_.group_end());
    constexpr size_t kSize = sizeof(float);
    for (int32_t rank = 0; rank < place().size && own.size() > 0; ++rank) {
      const int64_t first = std::min(rank * part, all.shape[1]);
      const int64_t width = std::min((rank + 1) * part, all.shape[1]) - first;
      if (width > 0) {
        WR_CUDA(cudaMemcpy2DAsync(all.row(own.begin) + first,
                                  static_cast<size_t>(all.stride[0]) * kSize,
                                  scratch_ + rank * room,
                                  static_cast<size_t>(part) * kSize,
                                  static_cast<size_t>(width) * kSize,
                                  static_cast<size_t>(own.size()),
                                  cudaMemcpyDeviceToDevice,
                                  handle(stream)));
      }
    }
  }

  const Nccl& nccl_;
  const AbortFlag& abort_;
  Nccl::Comm comm_ = nullptr;
  float* scratch_ = nullptr;  // dev f32 [kScratchValues]
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const RankPlace& place, HostGroup& all) {
  if (place.tensor.size == 1) {
    return nullptr;
  }
  // The first rank of each group makes its id.
  std::string mine;
  if (place.tensor.rank == 0) {
    Nccl::Id id{};
    WR_NCCL(nccl().get_id(&id));
    mine.assign(id.bytes, sizeof id.bytes);
  }
  const std::vector<std::string> ids = all.exchange(mine);
  const auto first = static_cast<size_t>(place.rank - place.tensor.rank);
  Nccl::Id id{};
  WR_CHECK_EQ(ids[first].size(), sizeof id.bytes);
  std::memcpy(id.bytes, ids[first].data(), sizeof id.bytes);
  return std::make_unique<NcclCommunicator>(place.tensor, id, all.abort());
}

}  // namespace warprow::cuda
