// SPDX-License-Identifier: Apache-2.0
#include "executor/external/launch.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<Launch> launch_of(const Variables& variables) {
  return read_launch([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string launch_refusal(const Variables& variables) {
  const Result<Launch> launch = launch_of(variables);
  return launch ? "" : launch.error().message;
}

TEST(Launch, EveryLauncherIsRead) {
  const Variables where = {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "4711"}};
  for (const auto& [rank, size] : {std::pair("RANK", "WORLD_SIZE"),
                                   std::pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                                   std::pair("PMI_RANK", "PMI_SIZE"),
                                   std::pair("SLURM_PROCID", "SLURM_NTASKS"),
                                   std::pair("LWS_WORKER_INDEX", "LWS_GROUP_SIZE")}) {
    Variables variables = where;
    variables[rank] = "2";
    variables[size] = "4";
    const Result<Launch> launch = launch_of(variables);
    ASSERT_TRUE(launch) << launch.error().message;
    EXPECT_EQ(launch->rank, 2);
    EXPECT_EQ(launch->size, 4);
    EXPECT_EQ(launch->address, "node1");
    EXPECT_EQ(launch->port, 4711);
    EXPECT_EQ(launch->size_variable, size);
  }
}

TEST(Launch, LaunchersThatAgreeMayBothBeThere) {
  const Variables both = {{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "2"},
                          {"PMIX_NAMESPACE", "job.7"},
                          {"TORCHELASTIC_RUN_ID", "night"},
                          {"MASTER_ADDR", "a"}};
  EXPECT_EQ(launch_of(both)->rank, 1);
  EXPECT_EQ(launch_of(both)->run_id, "night");
  EXPECT_EQ(launch_of(both)->port, 29500);
}

// srun starts the daemons of mpirun, and the ranks inherit what it said of them.
TEST(Launch, SlurmCountsOnlyAlone) {
  const Variables nested = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"SLURM_PROCID", "1"},
                            {"SLURM_NTASKS", "2"},
                            {"MASTER_ADDR", "a"}};
  EXPECT_EQ(launch_of(nested)->rank, 3);
  EXPECT_EQ(launch_of(nested)->size, 4);
}

TEST(Launch, ALeaderWorkerSetSaysWhereRank0Is) {
  const Variables pod = {
      {"LWS_WORKER_INDEX", "1"}, {"LWS_GROUP_SIZE", "2"}, {"LWS_LEADER_ADDRESS", "set-0.set"}};
  EXPECT_EQ(launch_of(pod)->address, "set-0.set");
  Variables several = pod;  // ranks in a pod
  several["RANK"] = "3";
  several["WORLD_SIZE"] = "4";
  EXPECT_EQ(launch_of(several)->rank, 3);
  EXPECT_EQ(launch_of(several)->address, "set-0.set");
}

TEST(Launch, ContradictionsNameVariableAndValues) {
  EXPECT_THAT(launch_refusal({{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"PMI_RANK", "0"},
                              {"PMI_SIZE", "2"},
                              {"MASTER_ADDR", "a"}}),
              HasSubstr("PMI_RANK is 0, but RANK is 1"));
  EXPECT_THAT(launch_refusal({{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "3"}}),
              HasSubstr("OMPI_COMM_WORLD_SIZE is 3, but WORLD_SIZE is 2"));
}

TEST(Launch, WrongValuesNameVariableValueAndLimit) {
  EXPECT_EQ(launch_refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "RANK: '2' is no number from 0 to 1; WORLD_SIZE is 2");
  EXPECT_EQ(launch_refusal({{"RANK", "0"}, {"WORLD_SIZE", "65"}}),
            "WORLD_SIZE: '65' is no number from 1 to 64");
  EXPECT_EQ(launch_refusal({{"SLURM_PROCID", "x"}, {"SLURM_NTASKS", "2"}}),
            "SLURM_PROCID: 'x' is no number from 0 to 1; SLURM_NTASKS is 2");
  EXPECT_EQ(launch_refusal({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}),
            "RANK: '-1' is no number from 0 to 1; WORLD_SIZE is 2");
  EXPECT_EQ(launch_refusal({{"RANK", "1"}}), "WORLD_SIZE is not set, but RANK is '1'");
  EXPECT_EQ(launch_refusal({{"PMI_SIZE", "2"}}), "PMI_RANK is not set, but PMI_SIZE is '2'");
  for (const char* port : {"0", "65536", "12a", "-5"}) {
    EXPECT_THAT(
        launch_refusal(
            {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", port}}),
        HasSubstr("MASTER_PORT: '" + std::string(port) + "' is no number from 1 to 65535"));
  }
  EXPECT_THAT(launch_refusal({}), HasSubstr("RANK and WORLD_SIZE are not set"));
}

TEST(Launch, TheAddressMayBeMissingOnOneHostOnly) {
  const Variables two = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_THAT(launch_refusal(two), HasSubstr("MASTER_ADDR is not set"));
  Variables here = two;
  here["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_THAT(launch_refusal(here), HasSubstr("MASTER_ADDR is not set"));
  here["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_EQ(launch_of(here)->address, "127.0.0.1");
  EXPECT_EQ(launch_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_NUM_NODES", "1"}})
                ->address,
            "127.0.0.1");
  EXPECT_THAT(
      launch_refusal({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_NUM_NODES", "2"}}),
      HasSubstr("MASTER_ADDR is not set"));
  EXPECT_EQ(launch_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}})->address, "127.0.0.1");
}

TEST(Launch, TheNumberOfRanksMustFit) {
  Launch launch;
  launch.size = 4;
  launch.size_variable = "WORLD_SIZE";
  EXPECT_TRUE(check_launch(launch, 2, 2));
  EXPECT_EQ(check_launch(launch, 2, 1).error().message,
            "WORLD_SIZE is 4, but --tensor-parallel-size 2 x --pipeline-parallel-size 1 are 2 "
            "ranks");
}

}  // namespace
}  // namespace warprow
