// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/step_recorder.h"

#include "base/log.h"
#include "base/wake_up.h"
#include "executor/executor_wrapper.h"
#include "wire/serialize.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

namespace warprow {
namespace {

struct Slot {
  StepMessage message = StepMessage::kStep;
  uint64_t number = 0;
  SchedulerOutput step;
  GrammarOutput grammar;
  ModelRunnerOutput output;
};

void drop_vectors(ModelRunnerOutput& output) {
  for (RowOutput& row : output.rows) {
    row.hidden = row.pooled = row.tensors = {};
  }
  output.hidden_states.reset();
  output.pooled.reset();
  output.tensors.clear();
}

// Owns: the file, the queue and the thread that empties it. Thread: as Executor.
class StepRecorder final : public ExecutorWrapper {
 public:
  StepRecorder(std::unique_ptr<Executor> inner,
               StepFileWriter file,
               const StepRecorderOptions& options)
      : ExecutorWrapper(std::move(inner)),
        file_(std::move(file)),
        with_ids_(options.with_ids),
        slots_(options.queue_length),
        writer_([this] { write_messages(); }) {}
  ~StepRecorder() override {
    stopping_ = true;
    wake_up_.notify();
    writer_.join();
    if (num_lost_ > 0) {
      WR_LOG_WARN("{} messages of steps were not recorded", num_lost_.load());
    }
  }

  void execute_model(const SchedulerOutput& step) override {
    if (Slot* slot = next_slot(StepMessage::kStep)) {
      slot->step = step;
      publish();
    }
    inner().execute_model(step);
  }
  void sample_tokens(const GrammarOutput* grammar) override {
    if (grammar != nullptr) {
      if (Slot* slot = next_slot(StepMessage::kGrammar)) {
        slot->grammar = *grammar;
        publish();
      }
    }
    inner().sample_tokens(grammar);
  }
  void take_output(ModelRunnerOutput& output) override {
    inner().take_output(output);
    if (Slot* slot = next_slot(StepMessage::kOutput)) {
      slot->output = output;
      publish();
    }
  }

 private:
  // Null if the queue is full.
  Slot* next_slot(StepMessage message) {
    const uint64_t number = ++number_;
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - tail_.load(std::memory_order_acquire) == slots_.size()) {
      ++num_lost_;
      return nullptr;
    }
    Slot& slot = slots_[head % slots_.size()];
    slot.message = message;
    slot.number = number;
    return &slot;
  }
  void publish() {
    head_.fetch_add(1, std::memory_order_release);
    wake_up_.notify();
  }

  void write_messages() {
    for (;;) {
      const bool stopping = stopping_;
      uint64_t tail = tail_.load(std::memory_order_relaxed);
      while (tail != head_.load(std::memory_order_acquire)) {
        if (!write(slots_[tail % slots_.size()])) {
          ++num_lost_;
        }
        tail_.store(++tail, std::memory_order_release);
      }
      if (num_lost_ > 0 && !std::exchange(did_warn_, true)) {
        WR_LOG_WARN(
            "the recording lacks messages: the file is too small, too slow or cannot be written");
      }
      if (stopping) {
        return;
      }
      wake_up_.wait();
    }
  }
  bool write(Slot& slot) {
    hashes_.clear();
    switch (slot.message) {
      case StepMessage::kStep:
        return write(slot, slot.step);
      case StepMessage::kGrammar:
        return write(slot, slot.grammar);
      case StepMessage::kOutput:
        drop_vectors(slot.output);
        return write(slot, slot.output);
    }
    return false;
  }
  template <typename Message>
  bool write(const Slot& slot, Message& message) {
    if (!with_ids_) {
      hide_ids(message, hashes_);
    }
    serialize(message, bytes_);
    return file_.append(slot.message, slot.number, bytes_, hashes_);
  }

  StepFileWriter file_;
  bool with_ids_;
  std::vector<Slot> slots_;  // the message n at n modulo its size
  uint64_t number_ = 0;
  std::atomic<uint64_t> head_{0};  // messages that were put in
  std::atomic<uint64_t> tail_{0};  // messages that were written
  std::atomic<uint64_t> num_lost_{0};
  std::atomic<bool> stopping_{false};
  WakeUp wake_up_;
  bool did_warn_ = false;        // of the writing thread
  std::vector<uint8_t> bytes_;   // of the writing thread
  std::vector<IdsHash> hashes_;  // of the writing thread
  std::thread writer_;
};

}  // namespace

std::unique_ptr<Executor> make_step_recorder(std::unique_ptr<Executor> inner,
                                             StepFileWriter file,
                                             const StepRecorderOptions& options) {
  return std::make_unique<StepRecorder>(std::move(inner), std::move(file), options);
}

}  // namespace warprow
