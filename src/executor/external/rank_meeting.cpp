// SPDX-License-Identifier: Apache-2.0
#include "executor/external/rank_meeting.h"

#include "base/error.h"
#include "base/log.h"
#include "comm/cpu/shared_memory_communicator.h"
#include "comm/cpu/tcp_communicator.h"
#include "comm/share_memory.h"
#include "config/env.h"
#include "config/fields.h"
#include "device/cpu/host_limits.h"
#include "wire/archive.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <string_view>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow {

// Not in an anonymous namespace: the archives find these by argument-dependent lookup.
template <typename A>
void visit(A& archive, wire::Ref<A, Introduction::Setting> v) {
  archive(v.name, v.text);
}

template <typename A>
void visit(A& archive, wire::Ref<A, Introduction> v) {
  archive(v.settings, v.host_mark, v.cores, v.gpus, v.where);
}

namespace {

// How long ranks wait for one that loads more slowly.
constexpr std::chrono::minutes kLoadingPatience{30};

// Settings of a rank's own machine. All others must be equal.
constexpr std::array<std::string_view, 8> kOwnSettings = {"device-ids",
                                                          "threads",
                                                          "pin-threads",
                                                          "worker-binary",
                                                          "stall-timeout",
                                                          "join-timeout",
                                                          "log-level",
                                                          "log-format"};

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::vector<std::vector<int32_t>> tensor_groups(const RankPlace& place) {
  std::vector<std::vector<int32_t>> groups(static_cast<size_t>(place.pipeline.size));
  for (int32_t rank = 0; rank < place.world_size(); ++rank) {
    groups[static_cast<size_t>(rank / place.tensor.size)].push_back(rank);
  }
  return groups;
}

std::vector<std::vector<int32_t>> stage_groups(const RankPlace& place) {
  std::vector<std::vector<int32_t>> groups(static_cast<size_t>(place.tensor.size));
  for (int32_t rank = 0; rank < place.world_size(); ++rank) {
    groups[static_cast<size_t>(rank % place.tensor.size)].push_back(rank);
  }
  return groups;
}

}  // namespace

Introduction introduce(const EngineConfig& config) {
  Introduction mine;
  mine.settings.push_back({"version", WARPROW_VERSION});
  for_each_field([&](const Field& field) {
    if (std::ranges::find(kOwnSettings, field.name) == kOwnSettings.end()) {
      const std::string text = field_text(config, field);
      const bool is_auto = field.auto_value && text == std::to_string(*field.auto_value);
      mine.settings.push_back({field.name, is_auto ? "auto" : text});
    }
  });
  mine.host_mark = host_mark();
  mine.cores = fmt::format("{}", fmt::join(cpu::affinity_cores(), ","));
  mine.gpus = environment("CUDA_VISIBLE_DEVICES").value_or("");
  mine.where = fmt::format("process {} on {}", ::getpid(), host_name());
  return mine;
}

std::string disagreement(const std::vector<Introduction>& ranks) {
  const std::vector<Introduction::Setting>& first = ranks.front().settings;
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const std::vector<Introduction::Setting>& other = ranks[rank].settings;
    for (size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
      if (first[i].name != other[i].name) {
        return fmt::format(
            "rank {} has other settings than rank 0: {} instead of {}; all ranks must be the "
            "same build",
            rank,
            other[i].name,
            first[i].name);
      }
      if (first[i].text != other[i].text) {
        return fmt::format("{}: '{}' on rank 0 ({}), '{}' on rank {} ({}); it must be equal",
                           first[i].name,
                           first[i].text,
                           ranks.front().where,
                           other[i].text,
                           rank,
                           ranks[rank].where);
      }
    }
    if (first.size() != other.size()) {
      return fmt::format(
          "rank {} knows {} settings and rank 0 {}; all ranks must be the same build",
          rank,
          other.size(),
          first.size());
    }
  }
  return "";
}

std::string encode(const Introduction& introduction) {
  std::vector<uint8_t> bytes;
  {
    wire::Writer writer(bytes);
    writer(introduction);
  }
  return {bytes.begin(), bytes.end()};
}

Result<Introduction> decode_introduction(const std::string& bytes) {
  Introduction read;
  wire::Reader reader({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  reader(read);
  if (!reader.ok() || reader.num_left() != 0) {
    return fail(ErrorCode::kCorrupt, "cannot be read; all ranks must be the same build");
  }
  return read;
}

RankMeeting::RankMeeting(const EngineConfig& config,
                         const Launch& launch,
                         const RankPlace& place,
                         AbortFlag& abort)
    : place_(place), tcp_only_(config.rank_transport == "tcp"), abort_(abort) {
  const Rendezvous where{
      launch.address, launch.port, launch.run_id, {place.rank, place.world_size()}};
  all_ = std::make_unique<TcpHostGroup>(where, abort, std::chrono::seconds(config.join_timeout));
  try {
    const std::vector<std::string> introductions = all_->exchange(encode(introduce(config)));
    for (size_t rank = 0; rank < introductions.size(); ++rank) {
      Result<Introduction> read = decode_introduction(introductions[rank]);
      if (!read) {
        throw StartupError(
            ErrorCode::kUnsupported,
            fmt::format("the introduction of rank {} {}", rank, read.error().message));
      }
      ranks_.push_back(*std::move(read));
    }
    if (const std::string why = disagreement(ranks_); !why.empty()) {
      wait_for_readers();
      throw StartupError(ErrorCode::kInvalidArgument, why);
    }
    std::vector<int32_t> everyone(static_cast<size_t>(place.world_size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    mesh_ = all_->connect(everyone);
    if (place.tensor.size > 1) {
      tensor_ = join(tensor_groups(place), place.tensor, {}, 0);
    }
    if (place.pipeline.size > 1) {
      const SlotSizes sizes = stage_slots(place.pipeline.size);
      pipeline_ =
          join(stage_groups(place), place.pipeline, sizes, sizes.pair_bytes * sizes.num_pair_slots);
    }
  } catch (...) {
    abort.raise(place.rank, AbortPhase::kStart);
    throw;
  }
  all_->set_patience(kLoadingPatience);
}

// Waits until all ranks have read the introductions. Call it before this rank ends because of them.
void RankMeeting::wait_for_readers() {
  try {
    all_->barrier();
  } catch (const StartupError& error) {
    WR_LOG_DEBUG("a rank that has read it too has ended: {}", error.what());
  }
}

bool RankMeeting::may_share(const std::vector<int32_t>& members) const {
  const auto mark = [&](int32_t rank) { return ranks_[static_cast<size_t>(rank)].host_mark; };
  return !tcp_only_ && std::ranges::all_of(members, [&](int32_t rank) {
    return mark(rank) == mark(members.front());
  });
}

// All ranks pass the same groups, and take part in the making of those that they are not in.
std::unique_ptr<Communicator> RankMeeting::join(const std::vector<std::vector<int32_t>>& groups,
                                                GroupPlace place,
                                                SlotSizes sizes,
                                                size_t outbox_bytes) {
  const std::vector<int32_t> alone = {place_.rank};
  const std::vector<int32_t>& mine = *std::ranges::find_if(groups, [&](const auto& group) {
    return std::ranges::find(group, place_.rank) != group.end();
  });
  bool shares = may_share(mine);
  SharedMemory memory;
  try {
    memory = share_memory(*all_,
                          shares ? mine : alone,
                          shares ? shared_memory_communicator_bytes(place.size, sizes) : 1);
  } catch (const StartupError& error) {  // on all members
    WR_LOG_WARN("ranks exchange over TCP: {}", error.what());
    shares = false;
  }
  const std::vector<std::string> sharing = all_->exchange(shares ? "memory" : "tcp");
  std::unique_ptr<Communicator> made;
  if (std::ranges::find(sharing, "tcp") != sharing.end()) {
    TcpMesh mesh = all_->connect(shares ? alone : mine);
    if (!shares) {
      made = make_tcp_communicator(std::move(mesh), abort_, outbox_bytes);
    }
  }
  if (shares) {
    made = make_shared_memory_communicator(place, memory.data(), abort_, sizes);
    memories_.push_back(std::move(memory));
  }
  return made;
}

RankComms RankMeeting::comms() const {
  return {tensor_.get(), place_.world_size() > 1 ? all_.get() : nullptr, pipeline_.get()};
}

HostShare RankMeeting::share() const {
  const Introduction& mine = ranks_[static_cast<size_t>(place_.rank)];
  HostShare share{0, 0, 0, 0, 0};
  for (int32_t rank = 0; rank < place_.world_size(); ++rank) {
    const Introduction& other = ranks_[static_cast<size_t>(rank)];
    if (other.host_mark != mine.host_mark) {
      continue;
    }
    ++share.memory_ranks;
    if (other.cores == mine.cores) {
      share.nth_core_rank += rank < place_.rank ? 1 : 0;
      ++share.core_ranks;
    }
    if (other.gpus == mine.gpus) {
      share.nth_gpu_rank += rank < place_.rank ? 1 : 0;
      ++share.gpu_ranks;
    }
  }
  return share;
}

}  // namespace warprow
