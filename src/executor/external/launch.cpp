// SPDX-License-Identifier: Apache-2.0
#include "executor/external/launch.h"

#include "comm/rank_place.h"
#include "comm/tcp/hello.h"
#include "config/env.h"

#include <charconv>
#include <limits>

#include <fmt/format.h>

namespace warprow {
namespace {

struct Launcher {
  const char* rank;
  const char* size;
  const char* run;                   // the name of a run
  const char* local_size = nullptr;  // ranks on this host
  const char* hosts = nullptr;       // number of hosts
};
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "PMIX_NAMESPACE",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "PMI_JOBID", "MPI_LOCALNRANKS"},
};
// These may have started one of the launchers above, so they count only without the others.
constexpr Launcher kOuterLaunchers[] = {
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", nullptr, "SLURM_STEP_NUM_NODES"},
    {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS"},
};

constexpr const char* kAddress = "MASTER_ADDR";
constexpr const char* kLeader = "LWS_LEADER_ADDRESS";
constexpr const char* kPort = "MASTER_PORT";

struct RankAndSize {
  int32_t rank = 0;
  int32_t size = 1;
};

Result<int32_t> read_launch_number(const ReadVariable& variable,
                                   const char* name,
                                   int32_t min,
                                   int32_t max) {
  const std::string text = variable(name).value_or("");
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < min || number > max) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' is no number from {} to {}", name, text, min, max));
  }
  return number;
}

bool is_there(const ReadVariable& variable, const Launcher& launcher) {
  return variable(launcher.rank).has_value() || variable(launcher.size).has_value();
}

Result<RankAndSize> read_launcher(const ReadVariable& variable, const Launcher& launcher) {
  for (const auto& [name, other] :
       {std::pair(launcher.rank, launcher.size), std::pair(launcher.size, launcher.rank)}) {
    if (!variable(name)) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{} is not set, but {} is '{}'", name, other, variable(other).value_or("")));
    }
  }
  const Result<int32_t> size = read_launch_number(variable, launcher.size, 1, kMaxRanks);
  if (!size) {
    return tl::unexpected(size.error());
  }
  const Result<int32_t> rank = read_launch_number(variable, launcher.rank, 0, *size - 1);
  if (!rank) {
    return tl::unexpected(
        Error{rank.error().code,
              fmt::format("{}; {} is {}", rank.error().message, launcher.size, *size)});
  }
  return RankAndSize{*rank, *size};
}

// Whether the launcher says that all ranks run on this host.
bool is_one_host(const ReadVariable& variable, const Launcher& launcher, int32_t size) {
  return (launcher.local_size != nullptr &&
          variable(launcher.local_size) == std::to_string(size)) ||
         (launcher.hosts != nullptr && variable(launcher.hosts) == "1");
}

Result<void> read_address(const ReadVariable& variable, bool one_host, Launch& launch) {
  if (const std::optional<std::string> address = variable(kAddress)) {
    launch.address = *address;
  } else if (const std::optional<std::string> leader = variable(kLeader)) {
    launch.address = *leader;
  } else if (launch.size > 1 && !one_host) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is not set; it must be the address of rank 0's host, since {} ranks "
                    "may be on several",
                    kAddress,
                    launch.size));
  }
  if (variable(kPort)) {
    const Result<int32_t> port =
        read_launch_number(variable, kPort, 1, std::numeric_limits<uint16_t>::max());
    if (!port) {
      return tl::unexpected(port.error());
    }
    launch.port = static_cast<uint16_t>(*port);
  }
  return {};
}

}  // namespace

Result<Launch> read_launch(const ReadVariable& variable) {
  const Launcher* chosen = nullptr;
  RankAndSize read;
  for (const Launcher& launcher : kLaunchers) {
    if (!is_there(variable, launcher)) {
      continue;
    }
    const Result<RankAndSize> found = read_launcher(variable, launcher);
    if (!found) {
      return tl::unexpected(found.error());
    }
    if (chosen == nullptr) {
      chosen = &launcher;
      read = *found;
    }
    for (const auto& [name, value, first_name, first] :
         {std::tuple(launcher.rank, found->rank, chosen->rank, read.rank),
          std::tuple(launcher.size, found->size, chosen->size, read.size)}) {
      if (value != first) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} is {}, but {} is {}; launchers must agree, or only one may be "
                                "there",
                                name,
                                value,
                                first_name,
                                first));
      }
    }
  }
  for (const Launcher& launcher : kOuterLaunchers) {
    if (chosen == nullptr && is_there(variable, launcher)) {
      const Result<RankAndSize> found = read_launcher(variable, launcher);
      if (!found) {
        return tl::unexpected(found.error());
      }
      chosen = &launcher;
      read = *found;
    }
  }
  if (chosen == nullptr) {
    return fail(
        ErrorCode::kInvalidArgument,
        "--distributed-executor-backend: external_launcher needs a launcher that says which "
        "rank this is: RANK and WORLD_SIZE are not set, nor the variables of Open "
        "MPI, PMI, Slurm or LeaderWorkerSet");
  }
  Launch launch;
  launch.rank = read.rank;
  launch.size = read.size;
  launch.size_variable = chosen->size;
  launch.run_id = variable(chosen->run).value_or("").substr(0, kMostRunId);
  if (const Result<void> address =
          read_address(variable, is_one_host(variable, *chosen, read.size), launch);
      !address) {
    return tl::unexpected(address.error());
  }
  return launch;
}

Result<Launch> read_launch() {
  return read_launch([](const std::string& name) { return environment(name); });
}

Result<void> check_launch(const Launch& launch, int32_t tensor_size, int32_t pipeline_size) {
  if (launch.size == tensor_size * pipeline_size) {
    return {};
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}, but --tensor-parallel-size {} x --pipeline-parallel-size {} "
                          "are {} ranks",
                          launch.size_variable,
                          launch.size,
                          tensor_size,
                          pipeline_size,
                          tensor_size * pipeline_size));
}

}  // namespace warprow
