// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/step_file.h"

#include "cli/replay/step_file_writer.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr size_t kRingBegin = kStepFileAlign;

class StepFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "steps_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove(path_);
    std::filesystem::remove(path_ + ".old");
  }
  void TearDown() override { SetUp(); }

  StepFileWriter create(int64_t max_bytes = kMinStepFileBytes) {
    Result<StepFileWriter> writer = StepFileWriter::create(path_, max_bytes, "{\"a\":1}");
    EXPECT_TRUE(writer) << writer.error().message;
    return *std::move(writer);
  }
  // The n-th record: 10,000 bytes or more, each of the value n.
  static std::vector<uint8_t> content(uint64_t number) {
    return std::vector<uint8_t>(10000 + number % 7, static_cast<uint8_t>(number));
  }
  void write(uint64_t count) {
    StepFileWriter writer = create();
    for (uint64_t number = 1; number <= count; ++number) {
      EXPECT_TRUE(writer.append(StepMessage::kOutput, number, content(number)));
    }
  }
  void overwrite(size_t at, const std::string& bytes) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  std::vector<uint64_t> read_numbers(int64_t num_damaged = 0) {
    const Result<StepFile> file = StepFile::open(path_);
    EXPECT_TRUE(file) << file.error().message;
    std::vector<uint64_t> numbers;
    for (const StepFileRecord& record : file->records()) {
      const std::vector<uint8_t> bytes(record.bytes.begin(), record.bytes.end());
      EXPECT_EQ(bytes, content(record.number));
      numbers.push_back(record.number);
    }
    EXPECT_EQ(file->num_damaged(), num_damaged);
    return numbers;
  }

  std::string path_;
};

std::vector<uint64_t> sequence(uint64_t first, uint64_t last) {
  std::vector<uint64_t> numbers;
  for (uint64_t number = first; number <= last; ++number) {
    numbers.push_back(number);
  }
  return numbers;
}

TEST_F(StepFileTest, ReadsWhatWasWritten) {
  {
    StepFileWriter writer = create();
    const IdsHash hash{.row = RowId{3}, .of = IdsHash::Of::kSampled, .count = 2, .hash = 77};
    EXPECT_TRUE(writer.append(StepMessage::kStep, 1, content(1)));
    EXPECT_TRUE(writer.append(StepMessage::kOutput, 2, content(2), std::vector{hash, hash}));
  }
  const Result<StepFile> file = StepFile::open(path_);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->description(), "{\"a\":1}");
  ASSERT_EQ(file->records().size(), 2U);
  EXPECT_EQ(file->records()[0].message, StepMessage::kStep);
  EXPECT_EQ(file->records()[1].message, StepMessage::kOutput);
  ASSERT_EQ(file->records()[1].hashes.size(), 2U);
  EXPECT_EQ(file->records()[1].hashes[1].hash, 77U);
  EXPECT_EQ(read_numbers(), sequence(1, 2));
}

TEST_F(StepFileTest, KeepsItsSizeAndTheNewestRecords) {
  write(1000);
  EXPECT_EQ(std::filesystem::file_size(path_), static_cast<uintmax_t>(kMinStepFileBytes));
  const std::vector<uint64_t> numbers = read_numbers();
  ASSERT_GT(numbers.size(), 95U);  // of about 104 that fit
  EXPECT_EQ(numbers, sequence(1001 - numbers.size(), 1000));
}

TEST_F(StepFileTest, RecordsOfAllLengthsLeaveNoGap) {
  StepFileWriter writer = create();
  uint64_t draw = 1;
  for (uint64_t number = 1; number <= 3000; ++number) {
    draw = draw * 6364136223846793005 + 1442695040888963407;
    const size_t length = number % 50 == 0 ? 300000 : (draw >> 33) % 2000;
    ASSERT_TRUE(writer.append(StepMessage::kStep, number, std::vector<uint8_t>(length, 7)));
    if (number % 97 == 0) {
      const Result<StepFile> file = StepFile::open(path_);
      ASSERT_TRUE(file);
      ASSERT_EQ(file->records().back().number, number);
      ASSERT_EQ(file->records().size(), number + 1 - file->records().front().number);
      ASSERT_EQ(file->num_damaged(), 0);
    }
  }
}

TEST_F(StepFileTest, ATornRecordIsSkipped) {
  write(3);
  // The process ended while it wrote the third: the end of the record is missing.
  overwrite(kRingBegin + 2 * 10040 + 5000, std::string(10000, '\0'));
  EXPECT_EQ(read_numbers(1), sequence(1, 2));
}

TEST_F(StepFileTest, ADamagedByteCostsItsRecord) {
  write(5);
  overwrite(kRingBegin + 10040 + 3000, "x");
  EXPECT_EQ(read_numbers(1), (std::vector<uint64_t>{1, 3, 4, 5}));
}

TEST_F(StepFileTest, EveryDamagedByteOfAHeadIsFound) {
  write(2);
  for (size_t at = 0; at < sizeof(RecordHead); ++at) {
    std::string byte(1, '\0');
    std::ifstream(path_, std::ios::binary)
        .seekg(static_cast<std::streamoff>(kRingBegin + at))
        .read(byte.data(), 1);
    const std::string was = byte;
    byte[0] = static_cast<char>(byte[0] ^ 1);
    overwrite(kRingBegin + at, byte);
    const bool is_magic = at < sizeof(uint32_t);
    EXPECT_EQ(read_numbers(is_magic ? 0 : 1), sequence(2, 2)) << at;
    overwrite(kRingBegin + at, was);
  }
}

TEST_F(StepFileTest, AShortenedFileHasTheRecordsThatAreLeft) {
  write(5);
  std::filesystem::resize_file(path_, kRingBegin + 3 * 10040 + 20);
  EXPECT_EQ(read_numbers(), sequence(1, 3));
}

TEST_F(StepFileTest, ARecordLongerThanTheRingIsRefused) {
  StepFileWriter writer = create();
  EXPECT_FALSE(writer.append(StepMessage::kStep, 1, std::vector<uint8_t>(kMinStepFileBytes)));
  EXPECT_TRUE(writer.append(StepMessage::kStep, 2, content(2)));
  EXPECT_EQ(read_numbers(), sequence(2, 2));
}

TEST_F(StepFileTest, OnlyItsUserReadsIt) {
  write(1);
  struct stat info{};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST_F(StepFileTest, AnOlderRecordingIsKept) {
  write(1);
  write(2);
  EXPECT_EQ(read_numbers(), sequence(1, 2));
  std::filesystem::rename(path_ + ".old", path_);
  EXPECT_EQ(read_numbers(), sequence(1, 1));
}

TEST_F(StepFileTest, AnyOtherFileIsRefused) {
  std::ofstream(path_) << std::string(100, 'x');
  const Result<StepFileWriter> writer = StepFileWriter::create(path_, kMinStepFileBytes, "{}");
  ASSERT_FALSE(writer);
  EXPECT_NE(writer.error().message.find("is no recording of steps"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(path_), 100U);
}

TEST_F(StepFileTest, ADamagedDescriptionIsAnError) {
  write(1);
  overwrite(sizeof(StepFileHead), "x");
  const Result<StepFile> file = StepFile::open(path_);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace warprow
