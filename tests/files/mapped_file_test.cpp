// SPDX-License-Identifier: Apache-2.0
#include "files/mapped_file.h"

#include "base/check.h"
#include "tests/support/temp_dir.h"

#include <string>
#include <sys/stat.h>
#include <utility>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(MappedFile, MapsMovesAndDrops) {
  const test::TempDir dir;
  const std::string text(10'000, 'x');
  auto opened = MappedFile::open(dir.write("a", text + "!"));
  ASSERT_TRUE(opened) << opened.error().message;
  const std::byte* address = opened->bytes().data();
  MappedFile file = *std::move(opened);
  EXPECT_EQ(file.bytes().data(), address);
  EXPECT_EQ(file.bytes().size(), 10'001U);
  file.advise_sequential();
  file.advise_drop(1, 10'000);
  EXPECT_EQ(file.bytes()[10'000], std::byte{'!'});
  auto other = MappedFile::open(dir.write("b", "b"));
  ASSERT_TRUE(other);
  file = *std::move(other);
  EXPECT_EQ(file.bytes().size(), 1U);
  const ScopedCheckThrows throws;
  EXPECT_THROW(file.advise_drop(1, 1), CheckFailure);
}

TEST(MappedFile, ExplainsWhatItCannotOpen) {
  const test::TempDir dir;
  const std::string absent = (dir.path() / "absent").string();
  auto file = MappedFile::open(absent);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(file.error().message, "cannot open '" + absent + "': No such file or directory");

  file = MappedFile::open(dir.path().string());
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file.error().message, "'" + dir.path().string() + "' is a directory, not a file");

  const std::string pipe = (dir.path() / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // Opening a FIFO must not wait for a writer.
  EXPECT_EQ(MappedFile::open(pipe).error().code, ErrorCode::kInvalidArgument);
}

TEST(MappedFile, AnEmptyFileIsEmpty) {
  const test::TempDir dir;
  const auto file = MappedFile::open(dir.write("empty", ""));
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(file->bytes().empty());
  file->advise_drop(0, 0);
}

}  // namespace
}  // namespace warprow
