// SPDX-License-Identifier: Apache-2.0
#include "device/shape_only.h"

#include "device/cpu/cpu_stream.h"

namespace warprow {
namespace {

// The address of shape-only arenas: never mapped, so a stray access faults.
constexpr uintptr_t kNowhere = 0x100000;

class IgnoredEvent final : public Event {
 public:
  void wait() override {}
  [[nodiscard]] bool reached() const override { return true; }
};

class DroppingStream final : public cpu::CpuStream {
 public:
  explicit DroppingStream(Device& device) : device_(device) {}
  [[nodiscard]] Device& device() const override { return device_; }
  [[nodiscard]] bool discards() const override { return true; }
  void copy_to_device(void* /*dst*/, const void* /*src*/, size_t /*bytes*/) override {}
  void copy_to_host(void* /*dst*/, const void* /*src*/, size_t /*bytes*/) override {}
  void fill(void* /*dst*/, int /*byte*/, size_t /*bytes*/) override {}
  void record(Event& /*event*/) override {}
  void wait(Event& /*event*/) override {}
  void synchronize() override {}

 protected:
  cpu::Command* begin_command() override { return nullptr; }
  void end_command() override {}

 private:
  Device& device_;
};

class ShapeOnlyDevice final : public Device {
 public:
  explicit ShapeOnlyDevice(DeviceFacts facts) : facts_(std::move(facts)) {}
  [[nodiscard]] const DeviceFacts& facts() const override { return facts_; }
  [[nodiscard]] bool shape_only() const override { return true; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<DroppingStream>(*this); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<IgnoredEvent>(); }
  Arena make_arena(ArenaPurpose purpose, size_t bytes) override {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that is never dereferenced
    return {purpose, reinterpret_cast<std::byte*>(kNowhere), bytes, {}};
  }
  PinnedBuffer make_pinned(size_t bytes) override {
    pinned_bytes_ += static_cast<int64_t>(bytes);
    return {nullptr, bytes, {}};
  }
  [[nodiscard]] int64_t pinned_bytes() const override { return pinned_bytes_; }

 private:
  DeviceFacts facts_;
  int64_t pinned_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_shape_only_device(const DeviceFacts& facts) {
  return std::make_unique<ShapeOnlyDevice>(facts);
}

}  // namespace warprow
