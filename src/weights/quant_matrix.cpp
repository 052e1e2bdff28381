// SPDX-License-Identifier: Apache-2.0
#include "weights/quant_matrix.h"

#include "base/check.h"
#include "base/dtype.h"
#include "base/float8.h"
#include "base/math.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

tl::unexpected<Error> corrupt(const std::string& why) { return fail(ErrorCode::kCorrupt, why); }

tl::unexpected<Error> wrong_shape(const TensorSource& tensor, int64_t rows, int64_t cols) {
  return corrupt(fmt::format("tensor {} is [{}, {}], its weight wants [{}, {}]",
                             tensor.name,
                             tensor.rows,
                             tensor.cols,
                             rows,
                             cols));
}

uint32_t word_at(const TensorSource& tensor, int64_t row, int64_t col) {
  uint32_t word = 0;
  std::memcpy(
      &word,
      tensor.data + static_cast<size_t>(row) * tensor.row_bytes + static_cast<size_t>(col) * 4,
      4);
  return word;
}

// Scales of a matrix, in any of the types that files have.
class Scales {
 public:
  Scales() = default;
  explicit Scales(const TensorSource& tensor) : tensor_(&tensor), cols_(tensor.cols) {}

  static bool knows(TensorType type) {
    return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16 ||
           type == TensorType::kF8E8M0;
  }
  [[nodiscard]] float at(int64_t row, int64_t col) const {
    const auto i = static_cast<size_t>(row * cols_ + col);
    uint16_t half = 0;
    float value = 0.0F;
    switch (tensor_->type) {
      case TensorType::kF32:
        std::memcpy(&value, tensor_->data + i * 4, 4);
        return value;
      case TensorType::kF8E8M0:
        return std::ldexp(1.0F, static_cast<int>(tensor_->data[i]) - 127);
      default:
        std::memcpy(&half, tensor_->data + i * 2, 2);
        return tensor_->type == TensorType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
  }

 private:
  const TensorSource* tensor_ = nullptr;
  int64_t cols_ = 0;
};

// Whether a float is an IEEE half.
bool is_half(float v) {
  const float magnitude = std::fabs(v);
  return magnitude == 0.0F ||
         (magnitude <= 65504.0F && magnitude >= 0x1p-24F &&
          std::fmod(v, std::max(0x1p-24F, std::ldexp(1.0F, std::ilogb(v) - 10))) == 0.0F);
}

// Checks scales, and says in the form which numbers they are.
Result<void> check_scales(const TensorSource& tensor, QuantForm& form) {
  const Scales scales(tensor);
  bool halves = true;
  for (int64_t row = 0; row < tensor.rows; ++row) {
    for (int64_t col = 0; col < tensor.cols; ++col) {
      const float scale = scales.at(row, col);
      if (!std::isfinite(scale)) {
        return corrupt(
            fmt::format("tensor {}: scale [{}, {}] is {}", tensor.name, row, col, scale));
      }
      halves = halves && (tensor.type == TensorType::kF16 || is_half(scale));
    }
  }
  form.half_scales = halves;
  form.bf16_scales = tensor.type == TensorType::kBF16;
  return {};
}

// The group that tiles and panels have where `inputs` share a scale, of a row of `cols`.
int32_t neutral_group(int64_t inputs, int64_t cols) {
  if (inputs >= cols || inputs % 128 == 0) {
    return 128;
  }
  return inputs == 32 || inputs == 64 ? static_cast<int32_t>(inputs) : 1;
}

Result<const TensorSource*> part_of(const Checkpoint& checkpoint,
                                    const std::string& name,
                                    std::initializer_list<TensorType> types) {
  Result<const TensorSource*> found = checkpoint.require(name);
  if (found && std::find(types.begin(), types.end(), (*found)->type) == types.end()) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("tensor {} has the type {}, which its format does not have",
                            name,
                            tensor_type_name((*found)->type)));
  }
  return found;
}

Result<const TensorSource*> scales_of(const Checkpoint& checkpoint, const std::string& name) {
  return part_of(checkpoint,
                 name,
                 {TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kF8E8M0});
}

// What all matrices of several tensors have.
class TensorsMatrix : public QuantMatrix {
 public:
  explicit TensorsMatrix(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}
  [[nodiscard]] size_t bytes() const override {
    return std::transform_reduce(
        tensors_.begin(), tensors_.end(), size_t{0}, std::plus<>(), [](const TensorSource* t) {
          return t->bytes;
        });
  }
  void drop_pages() const override {
    for (const TensorSource* tensor : tensors_) {
      checkpoint_.drop_pages(*tensor);
    }
  }

  void read(const QuantPart& part, QuantBuffers& out) const override {
    WR_DCHECK(part.row >= 0 && part.row + part.num_rows <= rows_ && part.col % form_.group == 0);
    read_numbers(part, out.numbers.data());
    const int64_t groups = ceil_div<int64_t>(part.num_cols, form_.group);
    for (int64_t r = 0; r < part.num_rows; ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t col = part.col + g * form_.group;
        const auto at = static_cast<size_t>(r * groups + g);
        out.scales[at] = scale(part.row + r, col);
        out.zeros[at] =
            form_.has_zeros ? zero(part.row + r, col) : static_cast<uint8_t>(form_.zero_point);
      }
    }
  }

 protected:
  virtual void read_numbers(const QuantPart& part, uint8_t* out) const = 0;
  // Of a row and a column.
  [[nodiscard]] virtual float scale(int64_t row, int64_t col) const = 0;
  [[nodiscard]] virtual uint8_t zero(int64_t /*row*/, int64_t /*col*/) const { return 0; }

  const Checkpoint& checkpoint_;
  std::vector<const TensorSource*> tensors_;
};

// A byte a number: e4m3, or s8 without zero points.
class ByteMatrix final : public TensorsMatrix {
 public:
  using TensorsMatrix::TensorsMatrix;

  static Result<std::unique_ptr<QuantMatrix>> open(const Checkpoint& checkpoint,
                                                   const TensorSource& numbers,
                                                   int64_t rows,
                                                   int64_t cols) {
    auto out = std::make_unique<ByteMatrix>(checkpoint);
    if (numbers.rows != rows || numbers.cols != cols) {
      return wrong_shape(numbers, rows, cols);
    }
    const std::string inverse = numbers.name + "_scale_inv";
    const Result<const TensorSource*> found = scales_of(
        checkpoint, checkpoint.find(inverse) != nullptr ? inverse : numbers.name + "_scale");
    if (!found) {
      return tl::unexpected(found.error());
    }
    const TensorSource& scales = **found;
    const QuantConfig& config = checkpoint.quantisation();
    const int64_t count = scales.rows * scales.cols;
    const bool of_rows = count == rows && (scales.cols == 1 || scales.rows == 1);
    // A row of scales may fit both; it is one of blocks where the file states their size.
    const bool of_blocks = scales.rows == ceil_div(rows, config.block_rows) &&
                           scales.cols == ceil_div(cols, config.block_cols) &&
                           (config.has_blocks || !of_rows);
    if (count == 1) {
      out->rows_each_ = rows;
      out->cols_each_ = cols;
    } else if (of_blocks) {
      out->rows_each_ = config.block_rows;
      out->cols_each_ = config.block_cols;
      out->form_.col_unit = config.block_cols;
    } else if (of_rows) {
      out->cols_each_ = cols;
      out->of_row_ = scales.rows == 1;
    } else {
      return corrupt(
          fmt::format("tensor {} is [{}, {}]; a weight [{}, {}] wants one scale, one a row, or one "
                      "for each block of {} x {}",
                      scales.name,
                      scales.rows,
                      scales.cols,
                      rows,
                      cols,
                      config.block_rows,
                      config.block_cols));
    }
    const bool f8 = numbers.type == TensorType::kF8E4M3;
    out->format_ = f8 ? "F8_E4M3" : "INT8";
    out->form_.number = f8 ? QuantNumber::kF8 : QuantNumber::kQ8;
    out->form_.zero_point = f8 ? 0 : 128;
    out->form_.group = neutral_group(out->cols_each_, cols);
    if (f8 && out->form_.group != 128) {
      out->form_.group = 1;
    }
    if (Result<void> done = check_scales(scales, out->form_); !done) {
      return tl::unexpected(done.error());
    }
    if (Result<void> done =
            f8 ? out->read_inputs(of_blocks && count > 1, numbers.name) : Result<void>();
        !done) {
      return tl::unexpected(done.error());
    }
    out->form_.wide_inputs = !f8 && config.int8_inputs;
    out->rows_ = rows;
    out->cols_ = cols;
    out->numbers_ = &numbers;
    out->scales_ = Scales(scales);
    out->tensors_ = {&numbers, &scales};
    return out;
  }

 private:
  // How inputs are rounded. Blocks want scales for as many inputs; with other sizes than 128 inputs stay.
  Result<void> read_inputs(bool of_blocks, const std::string& name) {
    const QuantInputs inputs = checkpoint_.quantisation().inputs;
    if (inputs == QuantInputs::kDynamic) {
      form_.inputs = !of_blocks          ? F8Inputs::kRow
                     : cols_each_ == 128 ? F8Inputs::kGroup
                                         : F8Inputs::kNone;
    }
    if (inputs != QuantInputs::kStatic) {
      return {};
    }
    const std::string module = name.substr(0, name.rfind('.') + 1);
    const std::string other = module + "activation_scale";
    const Result<const TensorSource*> found =
        scales_of(checkpoint_, checkpoint_.find(other) != nullptr ? other : module + "input_scale");
    if (!found) {
      return tl::unexpected(found.error());
    }
    const TensorSource& tensor = **found;
    const float scale = tensor.rows * tensor.cols == 1 ? Scales(tensor).at(0, 0) : 0.0F;
    if (!std::isfinite(scale) || !(scale > 0.0F)) {
      return corrupt(fmt::format("tensor {} is [{}, {}] with the scale {}; one above 0 is wanted",
                                 tensor.name,
                                 tensor.rows,
                                 tensor.cols,
                                 scale));
    }
    form_.inputs = F8Inputs::kStatic;
    form_.input_scale = scale;
    return {};
  }

  void read_numbers(const QuantPart& part, uint8_t* out) const override {
    const auto cols = static_cast<size_t>(part.num_cols);
    const auto flip = static_cast<uint8_t>(form_.number == QuantNumber::kQ8 ? 0x80U : 0U);
    for (int64_t r = 0; r < part.num_rows; ++r, out += cols) {
      const std::byte* from = numbers_->data +
                              static_cast<size_t>(part.row + r) * numbers_->row_bytes +
                              static_cast<size_t>(part.col);
      std::memcpy(out, from, cols);
      for (size_t i = 0; flip != 0 && i < cols; ++i) {
        out[i] ^= flip;
      }
    }
  }
  [[nodiscard]] float scale(int64_t row, int64_t col) const override {
    return of_row_ ? scales_.at(0, row) : scales_.at(row / rows_each_, col / cols_each_);
  }

  const TensorSource* numbers_ = nullptr;
  Scales scales_;
  int64_t rows_each_ = 1;
  int64_t cols_each_ = 1;
  bool of_row_ = false;  // one scale a row, as a vector
};

// Numbers of 4 or 8 bits in words of 32, as compressed-tensors packs them: along a row, from the lowest bits on. Zero points
// are packed likewise along a column.
class PackedMatrix final : public TensorsMatrix {
 public:
  using TensorsMatrix::TensorsMatrix;

  static Result<std::unique_ptr<QuantMatrix>> open(const Checkpoint& checkpoint,
                                                   const std::string& name,
                                                   int64_t rows,
                                                   int64_t cols) {
    auto out = std::make_unique<PackedMatrix>(checkpoint);
    const auto numbers = part_of(checkpoint, name + "_packed", {TensorType::kI32});
    const auto scales = scales_of(checkpoint, name + "_scale");
    if (!numbers || !scales) {
      return tl::unexpected(numbers ? scales.error() : numbers.error());
    }
    const int64_t per_row = (*numbers)->cols * 32;
    out->bits_ = per_row >= cols * 8 ? 8 : 4;
    if ((*numbers)->rows != rows || (*numbers)->cols != ceil_div<int64_t>(cols * out->bits_, 32)) {
      return wrong_shape(**numbers, rows, ceil_div<int64_t>(cols * out->bits_, 32));
    }
    const int64_t groups = (*scales)->cols;
    if ((*scales)->rows != rows || groups < 1 || cols % groups != 0) {
      return corrupt(fmt::format("tensor {} is [{}, {}], which are no groups of a weight [{}, {}]",
                                 (*scales)->name,
                                 (*scales)->rows,
                                 groups,
                                 rows,
                                 cols));
    }
    out->tensors_ = {*numbers, *scales};
    out->inputs_ = cols / groups;
    out->form_.group = neutral_group(out->inputs_, cols);
    if (const TensorSource* zeros = checkpoint.find(name + "_zero_point")) {
      if (zeros->type != TensorType::kI32 ||
          zeros->rows != ceil_div<int64_t>(rows * out->bits_, 32) || zeros->cols != groups) {
        return wrong_shape(*zeros, ceil_div<int64_t>(rows * out->bits_, 32), groups);
      }
      out->zeros_ = zeros;
      out->form_.has_zeros = true;
      out->tensors_.push_back(zeros);
    }
    if (const TensorSource* order = checkpoint.find(name + "_g_idx")) {
      if (Result<void> done = out->read_order(*order, groups, cols); !done) {
        return tl::unexpected(done.error());
      }
    }
    if (Result<void> done = check_scales(**scales, out->form_); !done) {
      return tl::unexpected(done.error());
    }
    out->form_.number = out->bits_ == 4 ? QuantNumber::kQ4 : QuantNumber::kQ8;
    out->form_.zero_point = 1 << (out->bits_ - 1);
    out->form_.col_unit = groups == 1 ? 1 : out->inputs_;
    out->rows_ = rows;
    out->cols_ = cols;
    out->format_ = fmt::format("pack-quantized INT{}", out->bits_);
    out->numbers_ = *numbers;
    out->scales_ = Scales(**scales);
    return out;
  }

 private:
  Result<void> read_order(const TensorSource& order, int64_t groups, int64_t cols);

  void read_numbers(const QuantPart& part, uint8_t* out) const override {
    const int64_t per_word = 32 / bits_;
    const uint32_t mask = (1U << bits_) - 1;
    for (int64_t r = 0; r < part.num_rows; ++r) {
      for (int64_t c = part.col; c < part.col + part.num_cols; ++c, ++out) {
        const uint32_t word = word_at(*numbers_, part.row + r, c / per_word);
        *out = static_cast<uint8_t>(word >> (c % per_word * bits_) & mask);
      }
    }
  }
  [[nodiscard]] int64_t group_of(int64_t col) const {
    return order_.empty() ? col / inputs_ : order_[static_cast<size_t>(col)];
  }
  [[nodiscard]] float scale(int64_t row, int64_t col) const override {
    return scales_.at(row, group_of(col));
  }
  [[nodiscard]] uint8_t zero(int64_t row, int64_t col) const override {
    const int64_t per_word = 32 / bits_;
    const uint32_t word = word_at(*zeros_, row / per_word, group_of(col));
    return static_cast<uint8_t>(word >> (row % per_word * bits_) & ((1U << bits_) - 1));
  }

  int64_t bits_ = 4;
  int64_t inputs_ = 0;  // of a group
  const TensorSource* numbers_ = nullptr;
  const TensorSource* zeros_ = nullptr;
  Scales scales_;
  std::vector<int32_t> order_;  // of each column its group, unless groups follow each other
};

// Groups of columns as a tensor lists them; empty if they follow each other by `inputs`.
Result<std::vector<int32_t>> column_groups(const TensorSource& tensor,
                                           int64_t cols,
                                           int64_t groups,
                                           int64_t inputs) {
  if (tensor.type != TensorType::kI32 || tensor.rows * tensor.cols != cols) {
    return corrupt(fmt::format("tensor {} has {} elements of type {}, its weight wants {} of I32",
                               tensor.name,
                               tensor.rows * tensor.cols,
                               tensor_type_name(tensor.type),
                               cols));
  }
  std::vector<int32_t> order(static_cast<size_t>(cols));
  std::memcpy(order.data(), tensor.data, order.size() * sizeof(int32_t));
  bool plain = true;
  for (int64_t col = 0; col < cols; ++col) {
    const int32_t group = order[static_cast<size_t>(col)];
    if (group < 0 || group >= groups) {
      return corrupt(fmt::format(
          "tensor {}: element {} is {}, there are {} groups", tensor.name, col, group, groups));
    }
    plain = plain && group == col / inputs;
  }
  if (plain) {
    order.clear();
  }
  return order;
}

Result<void> PackedMatrix::read_order(const TensorSource& order, int64_t groups, int64_t cols) {
  Result<std::vector<int32_t>> read = column_groups(order, cols, groups, inputs_);
  if (!read) {
    return tl::unexpected(read.error());
  }
  order_ = *std::move(read);
  if (!order_.empty()) {
    form_.group = 1;
  }
  return {};
}

// AWQ and GPTQ: a row of words for each column of the matrix (AWQ), or for eight or four (GPTQ).
class ColumnWordsMatrix final : public TensorsMatrix {
 public:
  using TensorsMatrix::TensorsMatrix;

  static Result<std::unique_ptr<QuantMatrix>> open(const Checkpoint& checkpoint,
                                                   const std::string& module,
                                                   int64_t rows,
                                                   int64_t cols) {
    auto out = std::make_unique<ColumnWordsMatrix>(checkpoint);
    const QuantConfig& config = checkpoint.quantisation();
    out->awq_ = config.method == QuantMethod::kAwq;
    out->bits_ = config.bits;
    const int64_t per_word = 32 / out->bits_;
    const auto numbers = part_of(checkpoint, module + "qweight", {TensorType::kI32});
    const auto zeros = part_of(checkpoint, module + "qzeros", {TensorType::kI32});
    const auto scales = scales_of(checkpoint, module + "scales");
    for (const auto* part : {&numbers, &zeros, &scales}) {
      if (!*part) {
        return tl::unexpected(part->error());
      }
    }
    out->inputs_ = config.group_size == -1 ? cols : config.group_size;
    const int64_t groups = ceil_div(cols, out->inputs_);
    if (rows % per_word != 0 || (!out->awq_ && cols % per_word != 0)) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("tensor {}: a weight [{}, {}] is not whole words of {} numbers",
                              (*numbers)->name,
                              rows,
                              cols,
                              per_word));
    }
    const int64_t word_rows = out->awq_ ? cols : cols / per_word;
    const int64_t word_cols = out->awq_ ? rows / per_word : rows;
    if ((*numbers)->rows != word_rows || (*numbers)->cols != word_cols) {
      return wrong_shape(**numbers, word_rows, word_cols);
    }
    if ((*scales)->rows != groups || (*scales)->cols != rows) {
      return wrong_shape(**scales, groups, rows);
    }
    if ((*zeros)->rows != groups || (*zeros)->cols != rows / per_word) {
      return wrong_shape(**zeros, groups, rows / per_word);
    }
    out->form_.group = neutral_group(out->inputs_, cols);
    if (const TensorSource* order = out->awq_ ? nullptr : checkpoint.find(module + "g_idx")) {
      Result<std::vector<int32_t>> read = column_groups(*order, cols, groups, out->inputs_);
      if (!read) {
        return tl::unexpected(read.error());
      }
      out->order_ = *std::move(read);
      out->form_.group = out->order_.empty() ? out->form_.group : 1;
    }
    if (Result<void> done = check_scales(**scales, out->form_); !done) {
      return tl::unexpected(done.error());
    }
    out->form_.number = out->bits_ == 4 ? QuantNumber::kQ4 : QuantNumber::kQ8;
    out->form_.zero_point = 1 << (out->bits_ - 1);
    out->form_.has_zeros = true;
    out->form_.col_unit = groups == 1 ? 1 : out->inputs_;
    out->zero_more_ = !out->awq_ && config.zeros_less_one ? 1 : 0;
    out->rows_ = rows;
    out->cols_ = cols;
    out->format_ = fmt::format("{} INT{}", out->awq_ ? "AWQ" : "GPTQ", out->bits_);
    out->numbers_ = *numbers;
    out->zeros_ = *zeros;
    out->scales_ = Scales(**scales);
    out->tensors_ = {*numbers, *zeros, *scales};
    out->drop_zeros_if_alike(groups);
    return out;
  }

 private:
  // A symmetric matrix has one zero point for all.
  void drop_zeros_if_alike(int64_t groups) {
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t row = 0; row < rows_; ++row) {
        if (zero_of(row, g) != form_.zero_point) {
          return;
        }
      }
    }
    form_.has_zeros = false;
  }

  // The bits of output `row` in a word of eight outputs: AWQ interleaves them.
  [[nodiscard]] int64_t shift_in_word(int64_t row) const {
    constexpr std::array<int64_t, 8> kPlaces = {0, 4, 1, 5, 2, 6, 3, 7};
    const int64_t per_word = 32 / bits_;
    return (awq_ ? kPlaces[static_cast<size_t>(row % 8)] : row % per_word) * bits_;
  }

  void read_numbers(const QuantPart& part, uint8_t* out) const override {
    const uint32_t mask = (1U << bits_) - 1;
    const int64_t per_word = 32 / bits_;
    for (int64_t i = 0; i < part.num_cols; ++i) {
      const int64_t col = part.col + i;
      for (int64_t r = 0; r < part.num_rows; ++r) {
        const int64_t row = part.row + r;
        const uint32_t number =
            awq_ ? word_at(*numbers_, col, row / 8) >> shift_in_word(row)
                 : word_at(*numbers_, col / per_word, row) >> (col % per_word * bits_);
        out[r * part.num_cols + i] = static_cast<uint8_t>(number & mask);
      }
    }
  }
  [[nodiscard]] int64_t group_of(int64_t col) const {
    return order_.empty() ? col / inputs_ : order_[static_cast<size_t>(col)];
  }
  [[nodiscard]] float scale(int64_t row, int64_t col) const override {
    return scales_.at(group_of(col), row);
  }
  // GPTQ's first version stores zero points less one, within their bits.
  [[nodiscard]] uint8_t zero_of(int64_t row, int64_t group) const {
    const uint32_t mask = (1U << bits_) - 1;
    const uint32_t zero = word_at(*zeros_, group, row / (32 / bits_)) >> shift_in_word(row);
    return static_cast<uint8_t>((zero + zero_more_) & mask);
  }
  [[nodiscard]] uint8_t zero(int64_t row, int64_t col) const override {
    return zero_of(row, group_of(col));
  }

  bool awq_ = false;
  int64_t bits_ = 4;
  int64_t inputs_ = 0;
  uint32_t zero_more_ = 0;
  const TensorSource* numbers_ = nullptr;
  const TensorSource* zeros_ = nullptr;
  Scales scales_;
  std::vector<int32_t> order_;
};

float value_of(QuantNumber kind, uint8_t number, uint8_t zero) {
  return kind == QuantNumber::kF8 ? f8_e4m3_to_f32(number)
                                  : static_cast<float>(int{number} - int{zero});
}

}  // namespace

void QuantBuffers::resize(const QuantForm& form, const QuantPart& part) {
  const auto groups =
      static_cast<size_t>(part.num_rows * ceil_div<int64_t>(part.num_cols, form.group));
  numbers.resize(static_cast<size_t>(part.num_rows * part.num_cols));
  scales.resize(groups);
  zeros.resize(groups);
}

void dequantise(const QuantForm& form,
                const QuantPart& part,
                const QuantBuffers& from,
                float* out) {
  const int64_t groups = ceil_div<int64_t>(part.num_cols, form.group);
  size_t at = 0;
  for (int64_t r = 0; r < part.num_rows; ++r) {
    for (int64_t c = 0; c < part.num_cols; ++c, ++at) {
      const auto group = static_cast<size_t>(r * groups + c / form.group);
      out[at] = from.scales[group] * value_of(form.number, from.numbers[at], from.zeros[group]);
    }
  }
}

Result<std::unique_ptr<QuantMatrix>> find_quant_matrix(const Checkpoint& checkpoint,
                                                       const std::string& name,
                                                       int64_t rows,
                                                       int64_t cols) {
  const TensorSource* plain = checkpoint.find(name);
  if (plain != nullptr) {
    const bool bytes = plain->type == TensorType::kF8E4M3 || plain->type == TensorType::kI8;
    return bytes ? ByteMatrix::open(checkpoint, *plain, rows, cols) : nullptr;
  }
  if (checkpoint.find(name + "_packed") != nullptr) {
    return PackedMatrix::open(checkpoint, name, rows, cols);
  }
  const std::string module = name.substr(0, name.rfind('.') + 1);
  const QuantMethod method = checkpoint.quantisation().method;
  if ((method == QuantMethod::kAwq || method == QuantMethod::kGptq) &&
      checkpoint.find(module + "qweight") != nullptr) {
    return ColumnWordsMatrix::open(checkpoint, module, rows, cols);
  }
  return nullptr;
}

}  // namespace warprow
