// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "wire/model_runner_output.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <span>
#include <vector>

// The messages of a step as bytes, for workers in other processes and for tests.
//
// Format, little endian, version 7: a header of 24 bytes {u32 magic "wrpw", u16 version, u16 kind,
// u64 payload bytes, u64 checksum of the payload}, then the fields in the order of their
// declaration; a list or a string is a u32 count and its elements, an optional a u8 and its value. Both ends
// are the same build, so a version is refused, never converted.
namespace warprow {

// Replaces the content of `bytes`; its capacity is kept.
void serialize(const SchedulerOutput& message, std::vector<uint8_t>& bytes);
void serialize(const GrammarOutput& message, std::vector<uint8_t>& bytes);
void serialize(const ModelRunnerOutput& message, std::vector<uint8_t>& bytes);

// Replaces the content of `message`, whose capacity is kept. kCorrupt if bytes end early or are left over, if
// magic, version, kind or checksum is not as expected, if a count exceeds the bytes that are left, if a span points
// outside its pool, or if counts contradict each other; the message is then empty.
[[nodiscard]] Result<void> deserialize(std::span<const uint8_t> bytes, SchedulerOutput& message);
[[nodiscard]] Result<void> deserialize(std::span<const uint8_t> bytes, GrammarOutput& message);
[[nodiscard]] Result<void> deserialize(std::span<const uint8_t> bytes, ModelRunnerOutput& message);

// The checksum that the header must have; public so that tests can damage a payload behind a valid header.
[[nodiscard]] uint64_t payload_checksum(std::span<const uint8_t> payload);
inline constexpr size_t kWireHeaderBytes = 24;

}  // namespace warprow
