// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace warprow {

// The operations as types. Each has a name, an argument that the rank parses, and an answer that the caller parses.
// They are sent as text (runner/operations.h), so that a rank may live in another process. An operation is
// documented where it is added: in Worker::add_operations, or in its runner feature.
//
// Owns: nothing. Thread: any.

// Base of operations without argument and with a text answer.
struct TextOperation {
  using Answer = std::string;
  [[nodiscard]] static std::string encode() { return {}; }
  [[nodiscard]] static std::string decode(std::string answer) { return answer; }
};

// "ok" from every rank that answers.
struct CheckHealth : TextOperation {
  static constexpr std::string_view kName = "check_health";
};

// The memory plan after start-up: one JSON object, or lines as `warprow plan` prints them.
struct ReadMemoryPlan {
  using Answer = std::string;
  static constexpr std::string_view kName = "memory_plan";
  bool as_text = false;
  [[nodiscard]] std::string encode() const { return as_text ? "text" : ""; }
  [[nodiscard]] static std::string decode(std::string answer) { return answer; }
};

// Names by KV group, separated by commas.
struct ReadAttentionBackends : TextOperation {
  static constexpr std::string_view kName = "attention_backends";
};

// Checksum of everything on the device that outlives a step; waits for the device.
struct StateChecksum : TextOperation {
  static constexpr std::string_view kName = "state_checksum";
};

// Times the next steps on the device.
struct TimeSteps {
  using Answer = std::string;
  static constexpr std::string_view kName = "time_steps";
  int64_t num_steps = 0;
  [[nodiscard]] std::string encode() const { return std::to_string(num_steps); }
  [[nodiscard]] static std::string decode(std::string answer) { return answer; }
};
// JSON [[begin, end], ...] in microseconds of those steps; empty on a CPU.
struct ReadStepTimes : TextOperation {
  static constexpr std::string_view kName = "step_times";
};

// Gives memory back, and takes it again: SleepMode. Each rank answers with a report, one JSON object. No step may
// be in flight. Waking throws StartupError if there is too little memory, or no source to load weights from.
struct SleepRanks {
  using Answer = std::string;
  static constexpr std::string_view kName = "sleep";
  int level = 1;
  [[nodiscard]] std::string encode() const { return std::to_string(level); }
  [[nodiscard]] static std::string decode(std::string report) { return report; }
};
struct WakeRanks {
  using Answer = std::string;
  static constexpr std::string_view kName = "wake_up";
  std::string tags;  // empty: all
  [[nodiscard]] std::string encode() const { return tags; }
  [[nodiscard]] static std::string decode(std::string report) { return report; }
};

// Other weights for the loaded model, from a checkpoint on this machine: whether it fits, and loading it in place. Both
// throw StartupError; after a failed load the weights are undefined until a load succeeds. No step may be in flight.
struct WeightsOperation {
  using Answer = std::string;
  [[nodiscard]] static std::string decode(std::string answer) { return answer; }
};
struct CheckWeights : WeightsOperation {
  static constexpr std::string_view kName = "check_weights";
  std::string model;
  [[nodiscard]] std::string encode() const { return model; }
};
struct LoadWeights : WeightsOperation {
  static constexpr std::string_view kName = "load_weights";
  std::string model;
  [[nodiscard]] std::string encode() const { return model; }
};

// Adapters (runner/features/lora.h). LoadLora begins to load if it has not begun, and yields "busy", "loading", "ready" or "error
// CODE MESSAGE".
struct LoadLora {
  using Answer = std::string;
  static constexpr std::string_view kName = "load_lora";
  int32_t id = 0;
  std::string dir;
  [[nodiscard]] std::string encode() const { return std::to_string(id) + " " + dir; }
  [[nodiscard]] static std::string decode(std::string answer) { return answer; }
};
struct UnloadLora {
  using Answer = std::string;
  static constexpr std::string_view kName = "unload_lora";
  int32_t id = 0;
  [[nodiscard]] std::string encode() const { return std::to_string(id); }
  [[nodiscard]] static std::string decode(std::string answer) { return answer; }
};

}  // namespace warprow
