// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace warprow {

class Device;
class Graph;

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

// An in-order queue of device work. No call blocks the host except synchronize.
//
// Thread: one submitting thread at a time.
// Invariant: memory given to an operation stays valid and, unless the operation writes it,
// unchanged until the operation has run; an event tells when.
class Stream {
 public:
  virtual ~Stream() = default;
  [[nodiscard]] virtual Device& device() const = 0;
  // The host memory is pinned (Device::make_pinned) or stays valid until the stream has passed the copy.
  virtual void copy_to_device(void* dst, const void* src, size_t bytes) = 0;
  virtual void copy_to_host(void* dst, const void* src, size_t bytes) = 0;
  virtual void fill(void* dst, int byte, size_t bytes) = 0;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;
  // Host: blocks until the queue is empty. For start-up and shutdown; the step loop does not call it.
  virtual void synchronize() = 0;

  // Between begin and end, launches are recorded instead of run (nothing else may be enqueued). launch_graph then
  // runs the recording, any number of times.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  virtual void launch_graph(Graph& graph) = 0;

  // Whether operations are dropped: a stream of a shape-only device.
  [[nodiscard]] virtual bool discards() const { return false; }
  // Calls into the device's driver so far, captured launches not counted; 0 where there is none.
  [[nodiscard]] virtual int64_t num_driver_calls() const { return 0; }
};

}  // namespace warprow
