// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace warprow {

class Device;

// A point in a stream that the host or another stream can wait for. Recording again moves it. An
// event never recorded counts as reached.
class Event {
 public:
  virtual ~Event() = default;
  // Host: blocks until the work before the last record is done.
  virtual void wait() = 0;
  // Host: whether it is done, without blocking.
  [[nodiscard]] virtual bool reached() const = 0;
};

// An in-order queue of device work. Nothing here blocks the host except synchronize.
//
// Thread: one submitting thread at a time.
// Invariant: memory given to an operation stays valid and, unless the operation writes it,
// unchanged until the operation has run; an event tells when.
class Stream {
 public:
  virtual ~Stream() = default;
  [[nodiscard]] virtual Device& device() const = 0;
  // Host memory here is pinned (Device::make_pinned) or lives until the stream has passed the copy.
  virtual void copy_to_device(void* dst, const void* src, size_t bytes) = 0;
  virtual void copy_to_host(void* dst, const void* src, size_t bytes) = 0;
  virtual void fill(void* dst, int byte, size_t bytes) = 0;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;
  // Host: blocks until the queue is empty. For start-up and shutdown; the step loop never calls it.
  virtual void synchronize() = 0;
};

}  // namespace warprow
