// SPDX-License-Identifier: Apache-2.0
#include "server/http/file_reload.h"

#include "tests/support/temp_dir.h"

#include <filesystem>

#include <gtest/gtest.h>

namespace warprow {
namespace {

namespace fs = std::filesystem;

class FileReloadTest : public ::testing::Test {
 protected:
  // How often the files were read in this number of checks.
  int32_t reads_in(FileReload& reload, int32_t num_looks) {
    const int32_t before = num_reads_;
    for (int32_t i = 0; i < num_looks; ++i) {
      reload.look();
    }
    return num_reads_ - before;
  }
  FileReload watch(std::vector<std::string> paths) {
    return {"a test's file", std::move(paths), [this]() -> Result<void> {
              ++num_reads_;
              return works_ ? Result<void>() : fail(ErrorCode::kInvalidArgument, "broken");
            }};
  }

  test::TempDir folder_;
  bool works_ = true;
  int32_t num_reads_ = 0;
};

TEST_F(FileReloadTest, AChangeIsReadOnceItHasSettled) {
  const std::string path = folder_.write("a", "1");
  FileReload reload = watch({path});
  EXPECT_EQ(reads_in(reload, 3), 0);
  folder_.write("a", "22");
  EXPECT_EQ(reads_in(reload, 1), 0);
  folder_.write("a", "333");  // still being written
  EXPECT_EQ(reads_in(reload, 1), 0);
  EXPECT_EQ(reads_in(reload, 1), 1);
  EXPECT_EQ(reads_in(reload, 3), 0);
}

TEST_F(FileReloadTest, WhatIsBrokenIsTriedAgainWhenItChanges) {
  FileReload reload = watch({folder_.write("a", "1"), folder_.write("b", "1")});
  works_ = false;
  folder_.write("b", "22");
  EXPECT_EQ(reads_in(reload, 5), 1);
  works_ = true;
  fs::remove(folder_.path() / "a");
  EXPECT_EQ(reads_in(reload, 5), 1);
  folder_.write("a", "1");
  EXPECT_EQ(reads_in(reload, 5), 1);
}

// Kubernetes replaces all files of a secret at once, by switching to another folder.
TEST_F(FileReloadTest, LinksAreFollowed) {
  folder_.write("v1/a", "1");
  folder_.write("v2/a", "1");
  fs::create_symlink("v1", folder_.path() / "data");
  fs::create_symlink("data/a", folder_.path() / "a");
  FileReload reload = watch({(folder_.path() / "a").string()});
  EXPECT_EQ(reads_in(reload, 2), 0);
  fs::create_symlink("v2", folder_.path() / "new");
  fs::rename(folder_.path() / "new", folder_.path() / "data");
  EXPECT_EQ(reads_in(reload, 5), 1);
}

TEST_F(FileReloadTest, AtOnceOnDemand) {
  FileReload reload = watch({folder_.write("a", "1")});
  folder_.write("a", "22");
  reload.read_now();
  EXPECT_EQ(num_reads_, 1);
  EXPECT_EQ(reads_in(reload, 3), 0);
}

}  // namespace
}  // namespace warprow
