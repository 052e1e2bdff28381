// SPDX-License-Identifier: Apache-2.0
#include "layers/upload_weights.h"

#include "base/check.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/math.h"
#include "device/cpu/cpu_device.h"
#include "kernels/experts/mxfp4_tiles.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "layers/group_tiles.h"
#include "layers/quant_piece.h"
#include "weights/dequantize.h"
#include "weights/quant_groups.h"

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

bool is_pair(const WeightUpload& upload) { return upload.scales.rows() > 0; }
bool is_in_halves(const WeightUpload& upload) { return upload.second_half.rows() > 0; }

// Of the matrix.
int64_t num_rows(const WeightUpload& upload) {
  if (upload.matrix != nullptr) {
    return upload.part.num_rows;
  }
  return upload.transposed ? upload.region.cols()
                           : upload.region.rows() + upload.second_half.rows();
}
int64_t num_cols(const WeightUpload& upload) {
  if (upload.matrix != nullptr) {
    return upload.part.num_cols;
  }
  if (upload.transposed) {
    return upload.region.rows();
  }
  return is_pair(upload) ? 2 * upload.region.cols() : upload.region.cols();
}

// Rows that lie together in the device's form.
int64_t unit_rows(const WeightUpload& upload) {
  return upload.repack == Repack::kMxfp4Tiles   ? kMxfp4TileRows
         : upload.repack == Repack::kQuantTiles ? kQuantTileRows
                                                : 1;
}

// Bytes of unit_rows on the device.
size_t stored_unit_bytes(const WeightUpload& upload) {
  if (upload.repack == Repack::kMxfp4Tiles) {
    return mxfp4_tiles_bytes(kMxfp4TileRows, num_cols(upload));
  }
  if (upload.repack == Repack::kQuantTiles) {
    return quant_row_bytes(upload.tiles);
  }
  if (upload.repack == Repack::kKept) {
    return upload.region.row_bytes();
  }
  const size_t element = upload.repack == Repack::kF32Rows ? sizeof(float) : sizeof(uint16_t);
  return static_cast<size_t>(num_cols(upload)) * element;
}

// Consecutive rows of one matrix; of tiles, whole ones.
struct Piece {
  const WeightUpload* upload;
  int64_t first;
  int64_t count;

  [[nodiscard]] size_t offset() const {
    return static_cast<size_t>(first / unit_rows(*upload)) * stored_unit_bytes(*upload);
  }
  [[nodiscard]] size_t bytes() const {
    return static_cast<size_t>(ceil_div(count, unit_rows(*upload))) * stored_unit_bytes(*upload);
  }
};

std::vector<Piece> cut(std::span<const WeightUpload> uploads) {
  std::vector<Piece> pieces;
  for (const WeightUpload& upload : uploads) {
    const size_t unit_bytes = std::max<size_t>(1, stored_unit_bytes(upload));
    const auto units = static_cast<int64_t>(std::max<size_t>(1, kPieceBytes / unit_bytes));
    const int64_t rows = units * unit_rows(upload);
    for (int64_t first = 0; first < num_rows(upload); first += rows) {
      pieces.push_back({&upload, first, std::min(rows, num_rows(upload) - first)});
    }
  }
  return pieces;
}

size_t largest_bytes(const std::vector<Piece>& pieces) {
  size_t largest = 0;
  for (const Piece& piece : pieces) {
    largest = std::max(largest, piece.bytes());
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
        work.bytes_read += file_bytes(piece);
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
    const WeightUpload& upload = *piece.upload;
    if (upload.matrix != nullptr) {
      make_quant_piece(*upload.matrix,
                       upload.part,
                       upload.repack,
                       upload.tiles,
                       piece.first,
                       piece.count,
                       half.pinned.data());
      stream_->copy_to_device(upload.dst + piece.offset(), half.pinned.data(), piece.bytes());
      stream_->record(*half.passed);
      return;
    }
    switch (upload.repack) {
      case Repack::kKept:
        read_rows(files, piece, piece.upload->region, half.pinned.data());
        break;
      case Repack::kMxfp4Tiles:
        read_tiles(files, piece, half.pinned.data());
        break;
      case Repack::kQuantTiles:
        read_group_tiles(files, piece, half.pinned.data());
        break;
      default:
        decode_rows(files, piece, half.pinned.data());
    }
    stream_->copy_to_device(piece.upload->dst + piece.offset(), half.pinned.data(), piece.bytes());
    stream_->record(*half.passed);
  }

  // Of the checkpoint.
  static int64_t file_bytes(const Piece& piece) {
    const WeightUpload& upload = *piece.upload;
    if (upload.matrix != nullptr) {
      return static_cast<int64_t>(upload.matrix->bytes()) / num_rows(upload) * piece.count;
    }
    const auto bytes = static_cast<int64_t>(upload.region.bytes() + upload.scales.bytes() +
                                            upload.second_half.bytes());
    return bytes / num_rows(upload) * piece.count;
  }

  void decode_rows(const CheckpointFiles& files, const Piece& piece, std::byte* dst) {
    const WeightUpload& upload = *piece.upload;
    const auto count = static_cast<size_t>(piece.count);
    const size_t row_bytes = upload.transposed
                                 ? tensor_row_bytes(upload.region.type(), num_cols(upload))
                                 : upload.region.row_bytes();
    raw_.resize(count * row_bytes);
    if (upload.transposed) {
      read_columns(files, piece);
    } else {
      read_rows(files, piece, upload.region, raw_.data());
    }
    if (is_pair(upload)) {
      raw_scales_.resize(count * upload.scales.row_bytes());
      read_rows(files, piece, upload.scales, raw_scales_.data());
    }
    for (size_t row = 0; row < count; ++row) {
      decode_row(upload,
                 raw_.data() + row * row_bytes,
                 raw_scales_.data() + row * upload.scales.row_bytes(),
                 dst + row * stored_unit_bytes(upload));
    }
  }

  // Rows of the matrix that are columns of the region.
  void read_columns(const CheckpointFiles& files, const Piece& piece) {
    const WeightUpload& upload = *piece.upload;
    const TensorRegion& region = upload.region;
    const size_t bytes = tensor_row_bytes(region.type(), 1);
    const auto cols = static_cast<size_t>(num_cols(upload));
    std::vector<int64_t> rows(static_cast<size_t>(piece.count));
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = source_row(upload.order, piece.first + static_cast<int64_t>(i), upload.head_dim);
    }
    const auto [first, last] = std::ranges::minmax(rows);
    run_.resize(static_cast<size_t>(last + 1 - first) * bytes);
    for (size_t k = 0; k < cols; ++k) {
      const auto offset = static_cast<uint64_t>(first) * bytes;
      files.read(region.tensor().file,
                 region.file_offset(static_cast<int64_t>(k)) + offset,
                 run_.data(),
                 run_.size());
      for (size_t i = 0; i < rows.size(); ++i) {
        std::memcpy(raw_.data() + (i * cols + k) * bytes,
                    run_.data() + static_cast<size_t>(rows[i] - first) * bytes,
                    bytes);
      }
    }
  }

  // Rows stay in the file's order: those of a tile follow each other there.
  void read_tiles(const CheckpointFiles& files, const Piece& piece, std::byte* dst) {
    const WeightUpload& upload = *piece.upload;
    const auto cols = static_cast<size_t>(num_cols(upload));
    raw_.resize(static_cast<size_t>(piece.count) * cols / 2);
    raw_scales_.resize(static_cast<size_t>(piece.count) * cols / 32);
    if (is_pair(upload)) {
      WeightUpload plain = upload;
      plain.order = RowOrder::kPlain;
      const Piece in_file{&plain, piece.first, piece.count};
      read_rows(files, in_file, upload.region, raw_.data());
      read_rows(files, in_file, upload.scales, raw_scales_.data());
    } else {
      read_mxfp4_blocks(files, piece);
    }
    const size_t tile_bytes = stored_unit_bytes(upload);
    const Mxfp4Rows order = mxfp4_rows(upload.order, is_in_halves(upload));
    for (int64_t tile = 0; tile * kMxfp4TileRows < piece.count; ++tile) {
      if (!pack_mxfp4_tiles(
              {reinterpret_cast<const uint8_t*>(raw_.data()), raw_.size()},
              {reinterpret_cast<const uint8_t*>(raw_scales_.data()), raw_scales_.size()},
              piece.count,
              num_cols(upload),
              order,
              tile,
              {reinterpret_cast<uint8_t*>(dst) + static_cast<size_t>(tile) * tile_bytes,
               tile_bytes})) {
        throw StartupError(
            ErrorCode::kUnsupported,
            fmt::format("tensor {} has a scale above 2^{}",
                        (is_pair(upload) ? upload.scales : upload.region).tensor().name,
                        kMaxMxfp4Scale - 127));
      }
    }
  }

  // GGUF's blocks of a piece, as numbers and scales. Of halves a piece has rows of both, those of the first half first.
  void read_mxfp4_blocks(const CheckpointFiles& files, const Piece& piece) {
    const WeightUpload& upload = *piece.upload;
    const int64_t halves = is_in_halves(upload) ? 2 : 1;
    const Piece of_half{&upload, piece.first / halves, piece.count / halves};
    run_.resize(static_cast<size_t>(piece.count) * upload.region.row_bytes());
    read_rows(files, of_half, upload.region, run_.data());
    if (halves == 2) {
      read_rows(files, of_half, upload.second_half, run_.data() + run_.size() / 2);
    }
    split_mxfp4_blocks(
        run_.data(), piece.count * num_cols(upload), raw_.data(), raw_scales_.data());
  }

  void read_group_tiles(const CheckpointFiles& files, const Piece& piece, std::byte* dst) {
    const WeightUpload& upload = *piece.upload;
    raw_.resize(static_cast<size_t>(piece.count) * upload.region.row_bytes());
    read_rows(files, piece, upload.region, raw_.data());
    group_tiles_.pack(upload.region.type(), raw_.data(), piece.count, upload.tiles, dst);
  }

  static void read_rows(const CheckpointFiles& files,
                        const Piece& piece,
                        const TensorRegion& region,
                        std::byte* dst) {
    const WeightUpload& upload = *piece.upload;
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

  void decode_row(const WeightUpload& upload,
                  const std::byte* src,
                  const std::byte* scales,
                  std::byte* dst) {
    const int64_t cols = num_cols(upload);
    if (upload.repack == Repack::kF32Rows) {
      decode_values(upload, src, scales, reinterpret_cast<float*>(dst));
      return;
    }
    values_.resize(static_cast<size_t>(cols));
    decode_values(upload, src, scales, values_.data());
    std::transform(values_.begin(), values_.end(), reinterpret_cast<uint16_t*>(dst), f32_to_bf16);
  }

  static void decode_values(const WeightUpload& upload,
                            const std::byte* src,
                            const std::byte* scales,
                            float* dst) {
    if (is_pair(upload)) {
      dequantize_mxfp4_row(src, scales, dst, num_cols(upload));
    } else {
      dequantize_row(upload.region.type(), src, dst, num_cols(upload));
    }
  }

  std::unique_ptr<Stream> stream_;
  Half halves_[2];
  size_t turn_ = 0;
  std::vector<std::byte> raw_;
  std::vector<std::byte> raw_scales_;
  std::vector<std::byte> run_;
  std::vector<float> values_;
  GroupTiles group_tiles_;
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
