// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/host_limits.h"

#include "device/cpu/cpu_device.h"
#include "tests/support/temp_dir.h"

#include <sched.h>
#include <thread>

#include <gtest/gtest.h>

namespace warprow::cpu {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A directory that stands for a machine's root and has the files that a test writes.
class HostLimits : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) const {
    root_.write(path.substr(1), text);
  }
  [[nodiscard]] int32_t cores() const { return cores_within_quota(root_.path().string(), 16); }
  [[nodiscard]] int64_t memory() const {
    return memory_within_limit(root_.path().string(), 64 * kGiB);
  }

 private:
  test::TempDir root_;
};

TEST_F(HostLimits, NothingLimitsABareMachine) {
  EXPECT_EQ(cores(), 16);
  EXPECT_EQ(memory(), 64 * kGiB);
}

TEST_F(HostLimits, AContainerOfVersion2) {
  put("/proc/self/cgroup", "0::/\n");
  put("/sys/fs/cgroup/cpu.max", "max 100000\n");
  put("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(cores(), 16);
  EXPECT_EQ(memory(), 64 * kGiB);
  put("/sys/fs/cgroup/cpu.max", "350000 100000\n");
  put("/sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(cores(), 3);  // a fourth thread would be throttled half of the time
  EXPECT_EQ(memory(), kGiB);
  put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(cores(), 1);
  put("/sys/fs/cgroup/cpu.max", "6400000 100000\n");
  EXPECT_EQ(cores(), 16);  // never more than the affinity mask
}

TEST_F(HostLimits, AServiceUnderASlice) {
  put("/proc/self/cgroup", "0::/system.slice/warprow.service\n");
  put("/sys/fs/cgroup/system.slice/cpu.max", "800000 100000\n");
  put("/sys/fs/cgroup/system.slice/warprow.service/cpu.max", "max 100000\n");
  put("/sys/fs/cgroup/system.slice/warprow.service/memory.max", "2147483648\n");
  EXPECT_EQ(cores(), 8);
  EXPECT_EQ(memory(), 2 * kGiB);
  put("/sys/fs/cgroup/system.slice/warprow.service/cpu.max", "400000 100000\n");
  EXPECT_EQ(cores(), 4);
}

TEST_F(HostLimits, AContainerOfVersion1) {
  // The cgroup path is the host's. In the container its files are at the root.
  put("/proc/self/cgroup", "5:memory:/docker/0f3a\n4:cpu,cpuacct:/docker/0f3a\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 16);
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(cores(), 2);
  EXPECT_EQ(memory(), kGiB);
}

TEST_F(HostLimits, AGroupOfVersion1UnderAJointMount) {
  put("/proc/self/cgroup", "4:cpu,cpuacct:/jobs/a\n");
  put("/sys/fs/cgroup/cpu,cpuacct/jobs/a/cpu.cfs_quota_us", "500000\n");
  put("/sys/fs/cgroup/cpu,cpuacct/jobs/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), 5);
}

TEST_F(HostLimits, MalformedFilesLimitNothing) {
  put("/proc/self/cgroup", "\n0\nx:y\n0::\n0::relative\n");
  put("/sys/fs/cgroup/cpu.max", "many\n");
  put("/sys/fs/cgroup/memory.max", "");
  EXPECT_EQ(cores(), 16);
  EXPECT_EQ(memory(), 64 * kGiB);
  put("/proc/self/cgroup", "0::/\n");
  put("/sys/fs/cgroup/cpu.max", "200000\n");  // without the period
  EXPECT_EQ(cores(), 16);
  put("/sys/fs/cgroup/cpu.max", "200000 0\n");
  EXPECT_EQ(cores(), 16);
}

TEST(UsableCores, FollowTheAffinityMask) {
  std::thread([] {  // the affinity mask is per thread
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &set)) {
      ++cpu;
    }
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(usable_cores(), 1);
  })
      .join();
}

TEST(UsableCores, AreAtLeastOne) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_GT(usable_memory_bytes(), int64_t{64} << 20);
}

}  // namespace
}  // namespace warprow::cpu
