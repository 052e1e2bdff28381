// SPDX-License-Identifier: Apache-2.0
#include "comm/alone.h"

#include "base/check.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"

#include <cstring>

namespace warprow {
namespace {

// rows x bytes from one place to another.
struct RowCopy {
  const std::byte* from;
  std::byte* to;
  int64_t rows;
  size_t row_bytes;
  int64_t from_stride;  // bytes
  int64_t to_stride;
};

void enqueue(Stream& stream, const RowCopy& copy) {
  if (stream.discards() || copy.from == copy.to || copy.row_bytes == 0) {
    return;
  }
  WR_CHECK(stream.device().facts().kind == DeviceKind::kCpu, "a copy of CPU ranks on a GPU");
  cpu::as_cpu(stream).launch("copy_rows", [copy](cpu::ComputePool&) {
    for (int64_t row = 0; row < copy.rows; ++row) {
      std::memcpy(
          copy.to + row * copy.to_stride, copy.from + row * copy.from_stride, copy.row_bytes);
    }
  });
}

class Alone final : public Communicator {
 public:
  Alone() : Communicator({}) {}

  void all_reduce(Stream& /*stream*/, View<float, 2> /*values*/) override {}
  void all_gather(Stream& stream, const std::byte* mine, std::byte* all, size_t bytes) override {
    enqueue(stream, {mine, all, 1, bytes, 0, 0});
  }
  void broadcast(Stream& /*stream*/, std::byte* /*data*/, size_t /*bytes*/, int32_t root) override {
    WR_CHECK_EQ(root, 0);
  }
  void exchange_columns(Stream& stream, View<const float, 2> mine, View<float, 2> all) override {
    WR_CHECK_EQ(all.shape[0], mine.shape[0]);
    WR_CHECK_LE(all.shape[1], mine.shape[1]);
    constexpr int64_t kSize = sizeof(float);
    enqueue(stream,
            {reinterpret_cast<const std::byte*>(mine.data),
             reinterpret_cast<std::byte*>(all.data),
             all.shape[0],
             static_cast<size_t>(all.shape[1] * kSize),
             mine.stride[0] * kSize,
             all.stride[0] * kSize});
  }
  void send(Stream& /*stream*/, const std::byte* /*data*/, size_t /*bytes*/, int32_t to) override {
    WR_CHECK(false, "a rank alone sends to rank {}", to);
  }
  void receive(Stream& /*stream*/, std::byte* /*data*/, size_t /*bytes*/, int32_t from) override {
    WR_CHECK(false, "a rank alone receives from rank {}", from);
  }
};

class ShapeOnlyCommunicator final : public Communicator {
 public:
  explicit ShapeOnlyCommunicator(GroupPlace place) : Communicator(place) {}

  void all_reduce(Stream& stream, View<float, 2> /*values*/) override { check(stream); }
  void all_gather(Stream& stream,
                  const std::byte* /*mine*/,
                  std::byte* /*all*/,
                  size_t /*bytes*/) override {
    check(stream);
  }
  void broadcast(Stream& stream, std::byte* /*data*/, size_t /*bytes*/, int32_t /*root*/) override {
    check(stream);
  }
  void exchange_columns(Stream& stream,
                        View<const float, 2> /*mine*/,
                        View<float, 2> /*all*/) override {
    check(stream);
  }
  void send(Stream& stream, const std::byte* /*data*/, size_t /*bytes*/, int32_t /*to*/) override {
    check(stream);
  }
  void receive(Stream& stream, std::byte* /*data*/, size_t /*bytes*/, int32_t /*from*/) override {
    check(stream);
  }

 private:
  static void check(const Stream& stream) {
    WR_CHECK(stream.discards(), "a shape-only communicator runs nothing");
  }
};

}  // namespace

std::unique_ptr<Communicator> make_alone() { return std::make_unique<Alone>(); }

std::unique_ptr<Communicator> make_shape_only_communicator(GroupPlace place) {
  return std::make_unique<ShapeOnlyCommunicator>(place);
}

}  // namespace warprow
