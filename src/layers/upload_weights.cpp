// SPDX-License-Identifier: Apache-2.0
#include "layers/upload_weights.h"

#include "base/check.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/math.h"
#include "device/cpu/cpu_device.h"
#include "weights/dequantize.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;  // of rows in the device's form: one copy
constexpr int kMaxReaders = 16;

// Opens the checkpoint's files for reading at an offset. Not mapped: a read into pinned memory is one copy and has
// no page faults.
class CheckpointFiles {
 public:
  explicit CheckpointFiles(std::span<const std::string> paths) : paths_(paths) {
    for (const std::string& path : paths) {
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) {
        fail_at(path, std::strerror(errno));
      }
      fds_.push_back(fd);
    }
  }
  ~CheckpointFiles() {
    for (const int fd : fds_) {
      ::close(fd);
    }
  }
  CheckpointFiles(const CheckpointFiles&) = delete;
  CheckpointFiles& operator=(const CheckpointFiles&) = delete;

  void read(int file, uint64_t offset, std::byte* dst, size_t bytes) const {
    const auto index = static_cast<size_t>(file);
    while (bytes > 0) {
      const ssize_t got = ::pread(fds_[index], dst, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got <= 0) {
        fail_at(paths_[index], got == 0 ? "the file has become shorter" : std::strerror(errno));
      }
      dst += got;
      offset += static_cast<uint64_t>(got);
      bytes -= static_cast<size_t>(got);
    }
  }

 private:
  [[noreturn]] static void fail_at(const std::string& path, const char* why) {
    throw StartupError(ErrorCode::kCorrupt, fmt::format("cannot read '{}': {}", path, why));
  }

  std::span<const std::string> paths_;
  std::vector<int> fds_;
};

// Bytes of a row on the device.
size_t stored_row_bytes(const WeightUpload& upload) {
  if (upload.repack == Repack::kKept) {
    return upload.region.row_bytes();
  }
  const size_t element = upload.repack == Repack::kF32Rows ? sizeof(float) : sizeof(uint16_t);
  return static_cast<size_t>(upload.region.cols()) * element;
}

// Consecutive rows of one matrix.
struct Piece {
  const WeightUpload* upload;
  int64_t first;
  int64_t count;
};

std::vector<Piece> cut(std::span<const WeightUpload> uploads) {
  std::vector<Piece> pieces;
  for (const WeightUpload& upload : uploads) {
    const size_t row_bytes = std::max<size_t>(1, stored_row_bytes(upload));
    const auto rows = static_cast<int64_t>(std::max<size_t>(1, kPieceBytes / row_bytes));
    for (int64_t first = 0; first < upload.region.rows(); first += rows) {
      pieces.push_back({&upload, first, std::min(rows, upload.region.rows() - first)});
    }
  }
  return pieces;
}

size_t largest_bytes(const std::vector<Piece>& pieces) {
  size_t largest = 0;
  for (const Piece& piece : pieces) {
    largest = std::max(largest, static_cast<size_t>(piece.count) * stored_row_bytes(*piece.upload));
  }
  return largest;
}

// State that the readers share.
struct Work {
  explicit Work(const Checkpoint& checkpoint, std::span<const WeightUpload> uploads)
      : files(checkpoint.files()), pieces(cut(uploads)) {}
  const CheckpointFiles files;
  const std::vector<Piece> pieces;
  std::atomic<size_t> next = 0;
  std::mutex mutex;  // guards the members below
  int64_t bytes_read = 0;
  std::exception_ptr failure;
};

// One thread's stream and the two halves of its pinned staging buffer.
class Reader {
 public:
  Reader(Device& device, size_t piece_bytes) : stream_(device.make_stream()) {
    for (Half& half : halves_) {
      half.pinned = device.make_pinned(piece_bytes);
      half.passed = device.make_event();
    }
  }

  void run(Work& work, const std::function<void(int64_t)>& progress) {
    try {
      stream_->device().use_here();  // its own thread
      for (size_t i = work.next++; i < work.pieces.size(); i = work.next++) {
        const Piece& piece = work.pieces[i];
        send(work.files, piece);
        const std::scoped_lock lock(work.mutex);
        work.bytes_read += piece.count * static_cast<int64_t>(piece.upload->region.row_bytes());
        if (progress) {
          progress(work.bytes_read);
        }
      }
    } catch (...) {
      const std::scoped_lock lock(work.mutex);
      work.failure = std::current_exception();
      work.next = work.pieces.size();  // the other threads stop after their current piece
    }
    stream_->synchronize();
  }

 private:
  struct Half {
    PinnedBuffer pinned;
    std::unique_ptr<Event> passed;  // recorded after the copy from this half
  };

  void send(const CheckpointFiles& files, const Piece& piece) {
    Half& half = halves_[turn_++ % std::size(halves_)];
    half.passed->wait();
    const TensorRegion& region = piece.upload->region;
    const auto count = static_cast<size_t>(piece.count);
    if (piece.upload->repack == Repack::kKept) {
      read_rows(files, piece, half.pinned.data());
    } else {
      raw_.resize(count * region.row_bytes());
      read_rows(files, piece, raw_.data());
      for (size_t row = 0; row < count; ++row) {
        decode_row(*piece.upload,
                   raw_.data() + row * region.row_bytes(),
                   half.pinned.data() + row * stored_row_bytes(*piece.upload));
      }
    }
    const size_t row_bytes = stored_row_bytes(*piece.upload);
    stream_->copy_to_device(piece.upload->dst + static_cast<size_t>(piece.first) * row_bytes,
                            half.pinned.data(),
                            count * row_bytes);
    stream_->record(*half.passed);
  }

  static void read_rows(const CheckpointFiles& files, const Piece& piece, std::byte* dst) {
    const WeightUpload& upload = *piece.upload;
    const TensorRegion& region = upload.region;
    const size_t row_bytes = region.row_bytes();
    const int file = region.tensor().file;
    if (upload.order == RowOrder::kPlain && region.contiguous()) {
      files.read(
          file, region.file_offset(piece.first), dst, static_cast<size_t>(piece.count) * row_bytes);
      return;
    }
    for (int64_t i = 0; i < piece.count; ++i) {
      const int64_t row = source_row(upload.order, piece.first + i, upload.head_dim);
      files.read(
          file, region.file_offset(row), dst + static_cast<size_t>(i) * row_bytes, row_bytes);
    }
  }

  void decode_row(const WeightUpload& upload, const std::byte* src, std::byte* dst) {
    const TensorRegion& region = upload.region;
    if (upload.repack == Repack::kF32Rows) {
      dequantize_row(region.type(), src, reinterpret_cast<float*>(dst), region.cols());
      return;
    }
    values_.resize(static_cast<size_t>(region.cols()));
    dequantize_row(region.type(), src, values_.data(), region.cols());
    std::transform(values_.begin(), values_.end(), reinterpret_cast<uint16_t*>(dst), f32_to_bf16);
  }

  std::unique_ptr<Stream> stream_;
  Half halves_[2];
  size_t turn_ = 0;
  std::vector<std::byte> raw_;
  std::vector<float> values_;
};

}  // namespace

void upload_weights(Device& device,
                    const Checkpoint& checkpoint,
                    std::span<const WeightUpload> uploads,
                    const std::function<void(int64_t bytes)>& progress) {
  Work work(checkpoint, uploads);
  if (work.pieces.empty()) {
    return;
  }
  const size_t wanted = std::min<size_t>(work.pieces.size(), kMaxReaders);
  const size_t count = std::min(wanted, static_cast<size_t>(std::max(1, cpu::usable_cores())));
  std::vector<Reader> readers;
  readers.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    readers.emplace_back(device, largest_bytes(work.pieces));
  }
  {
    std::vector<std::jthread> threads;
    threads.reserve(count);
    for (Reader& reader : readers) {
      threads.emplace_back([&work, &reader, &progress] { reader.run(work, progress); });
    }
  }
  if (work.failure) {
    std::rethrow_exception(work.failure);
  }
}

}  // namespace warprow
