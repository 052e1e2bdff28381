// SPDX-License-Identifier: Apache-2.0
#include "layers/pack_tensor.h"

#include "base/check.h"
#include "base/dtype.h"
#include "base/math.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"
#include "kernels/linear/cpu/pack.h"
#include "kernels/random/fill_random.h"
#include "weights/quant_groups.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace warprow {
namespace {

// One worker's buffers for a panel of rows.
class PanelPacker {
 public:
  explicit PanelPacker(const PackTensor& job) : job_(job) {
    const auto rows = static_cast<size_t>(cpu::kRowsPerPanel);
    const auto cols = static_cast<size_t>(job.weight.k);
    if (!is_pair() && !is_quantised(job.region.type())) {
      values_.resize(rows * tensor_row_bytes(job.region.type(), job.weight.k));
      return;
    }
    q_.resize(rows * cols);
    scale_.resize(rows * cols / static_cast<size_t>(job.weight.group));
    bias_.resize(scale_.size());
    if (job.weight.scales == ScaleForm::kSplit) {
      scale_half_.resize(rows * cols / kSplitInputs);
      bias_half_.resize(scale_half_.size());
      scale_factor_.resize(scale_.size());
      bias_factor_.resize(scale_.size());
    }
  }

  void pack(int64_t first, int64_t count, std::byte* dst) {
    const TensorRegion& region = job_.region;
    const size_t row_bytes = region.row_bytes();
    const int64_t cols = job_.weight.k;
    const auto groups = static_cast<size_t>(job_.weight.k / job_.weight.group);
    if (job_.transposed) {
      gather_columns(first, count);
    }
    for (int64_t i = 0; i < count && !job_.transposed; ++i) {
      const auto at = static_cast<size_t>(i);
      const int64_t row = source_row(job_.order, first + i, job_.head_dim);
      const std::byte* src = region.row(row);
      if (is_pair()) {
        decode_mxfp4_groups(src,
                            job_.scales.row(row),
                            cols,
                            q_.data() + at * static_cast<size_t>(cols),
                            scale_.data() + at * groups);
      } else if (values_.empty()) {
        decode_groups(region.type(),
                      src,
                      cols,
                      q_.data() + at * static_cast<size_t>(cols),
                      scale_.data() + at * groups,
                      bias_.data() + at * groups);
        split_row(src, at, groups);
      } else {
        std::memcpy(values_.data() + at * row_bytes, src, row_bytes);
      }
    }
    if (values_.empty()) {
      const cpu::SplitRows split{
          scale_half_.data(), scale_factor_.data(), bias_half_.data(), bias_factor_.data()};
      cpu::pack_groups(
          job_.weight, dst, first, count, {q_.data(), scale_.data(), bias_.data(), split});
    } else {
      cpu::pack_values(job_.weight, dst, first, count, values_.data());
    }
  }

 private:
  [[nodiscard]] bool is_pair() const { return job_.scales.rows() > 0; }

  void gather_columns(int64_t first, int64_t count) {
    const size_t bytes = tensor_row_bytes(job_.region.type(), 1);
    const auto cols = static_cast<size_t>(job_.weight.k);
    for (size_t k = 0; k < cols; ++k) {
      const std::byte* src = job_.region.row(static_cast<int64_t>(k));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = source_row(job_.order, first + i, job_.head_dim);
        std::memcpy(values_.data() + (static_cast<size_t>(i) * cols + k) * bytes,
                    src + static_cast<size_t>(row) * bytes,
                    bytes);
      }
    }
  }

  void split_row(const std::byte* src, size_t at, size_t groups) {
    if (scale_half_.empty()) {
      return;
    }
    const auto halves = static_cast<size_t>(job_.weight.k / kSplitInputs);
    split_scales(job_.region.type(),
                 src,
                 job_.region.cols(),
                 {scale_half_.data() + at * halves,
                  scale_factor_.data() + at * groups,
                  bias_half_.data() + at * halves,
                  bias_factor_.data() + at * groups});
  }

  const PackTensor& job_;
  std::vector<std::byte> values_;
  std::vector<int8_t> q_;
  std::vector<float> scale_;
  std::vector<float> bias_;
  std::vector<uint16_t> scale_half_;  // ScaleForm::kSplit only, as are the following
  std::vector<uint16_t> bias_half_;
  std::vector<int8_t> scale_factor_;
  std::vector<int8_t> bias_factor_;
};

// One worker's buffers for a panel of rows of a quantised matrix.
class QuantPacker {
 public:
  explicit QuantPacker(const PackTensor& job) : job_(job), form_(job.matrix->form()) {}

  void pack(int64_t first, int64_t count, std::byte* dst) {
    read(first, count);
    const PackedWeight& weight = job_.weight;
    const QuantPart rows{0, count, 0, weight.k};
    if (weight.kind == PackedKind::kQ4 || weight.kind == PackedKind::kQ8) {
      make_groups(count);
      cpu::pack_groups(weight, dst, first, count, {q_.data(), scales_.data(), nullptr});
      return;
    }
    values_.resize(buffers_.numbers.size());
    dequantise(form_, rows, buffers_, values_.data());
    if (weight.kind == PackedKind::kF32) {
      cpu::pack_values(weight, dst, first, count, values_.data());
      return;
    }
    halves_.resize(values_.size());
    std::transform(values_.begin(), values_.end(), halves_.begin(), f32_to_bf16);
    cpu::pack_values(weight, dst, first, count, halves_.data());
  }

 private:
  void read(int64_t first, int64_t count) {
    QuantPart part = job_.part;
    part.row += first;
    part.num_rows = count;
    buffers_.resize(form_, part);
    job_.matrix->read(part, buffers_);
  }

  // Numbers less their zero points, and the scales of the product's groups, which may be parts of the matrix's.
  void make_groups(int64_t count) {
    const int64_t cols = job_.weight.k;
    const int64_t groups = ceil_div<int64_t>(cols, form_.group);
    q_.resize(buffers_.numbers.size());
    const auto group_size = static_cast<size_t>(job_.weight.group);
    scales_.resize(q_.size() / group_size);
    size_t at = 0;
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < cols; ++c, ++at) {
        const auto group = static_cast<size_t>(r * groups + c / form_.group);
        q_[at] = static_cast<int8_t>(int{buffers_.numbers[at]} - int{buffers_.zeros[group]});
        scales_[at / group_size] = buffers_.scales[group];
      }
    }
  }

  const PackTensor& job_;
  const QuantForm& form_;
  QuantBuffers buffers_;
  std::vector<int8_t> q_;
  std::vector<float> scales_;
  std::vector<float> values_;
  std::vector<uint16_t> halves_;
};

// Packs panels of random rows.
class RandomPacker {
 public:
  explicit RandomPacker(const PackRandom& job)
      : job_(job), values_(static_cast<size_t>(cpu::kRowsPerPanel * job.weight.k)) {}

  void pack(int64_t first, int64_t count, std::byte* dst) {
    const int64_t cols = job_.weight.k;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t element = job_.first + (first + i) * job_.stride;
      random_run(job_.seed, element, cols, job_.scale, values_.data() + i * cols);
    }
    cpu::pack_values(job_.weight, dst, first, count, values_.data());
  }

 private:
  const PackRandom& job_;
  std::vector<uint16_t> values_;
};

// Packs panels of random rows of MXFP4.
class RandomMxfp4Packer {
 public:
  explicit RandomMxfp4Packer(const PackRandomMxfp4& job)
      : job_(job),
        q_(static_cast<size_t>(cpu::kRowsPerPanel * job.weight.k)),
        // q is twice a number.
        scale_(q_.size() / static_cast<size_t>(job.weight.group),
               std::ldexp(1.0F, random_mxfp4_exponent(job.random) - 1)) {}

  void pack(int64_t first, int64_t count, std::byte* dst) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = source_row(job_.order, first + i, job_.head_dim);
      random_e2m1_row(job_.random, row, q_.data() + i * job_.weight.k);
    }
    cpu::pack_groups(job_.weight, dst, first, count, {q_.data(), scale_.data(), nullptr});
  }

 private:
  const PackRandomMxfp4& job_;
  std::vector<int8_t> q_;
  std::vector<float> scale_;
};

template <typename Packer, typename Job>
void pack_panels(const Job& job, cpu::ComputePool& pool) {
  const auto panel_bytes = static_cast<int64_t>(cpu::packed_panel_bytes(job.weight));
  const int64_t panels = ceil_div<int64_t>(job.weight.n, cpu::kRowsPerPanel);
  pool.parallel_for(panels,
                    std::max<int64_t>(1, panels / (4 * pool.num_workers())),
                    [&](int64_t begin, int64_t end, int32_t /*worker*/) {
                      Packer packer(job);
                      for (int64_t panel = begin; panel < end; ++panel) {
                        const int64_t first = panel * cpu::kRowsPerPanel;
                        const int64_t count = std::min(cpu::kRowsPerPanel, job.weight.n - first);
                        packer.pack(first, count, job.dst + panel * panel_bytes);
                      }
                    });
}

}  // namespace

void pack_tensor(Stream& stream, const PackTensor& job) {
  WR_CHECK(stream.device().facts().kind == DeviceKind::kCpu);
  if (job.matrix != nullptr) {
    WR_CHECK(job.order == RowOrder::kPlain && !job.transposed);
    cpu::as_cpu(stream).launch("pack_tensor", [job](cpu::ComputePool& pool) {
      pack_panels<QuantPacker>(job, pool);
      job.matrix->drop_pages();
    });
    return;
  }
  cpu::as_cpu(stream).launch("pack_tensor", [job](cpu::ComputePool& pool) {
    pack_panels<PanelPacker>(job, pool);
    job.region.drop_pages(*job.checkpoint);
    if (job.scales.rows() > 0) {
      job.scales.drop_pages(*job.checkpoint);
    }
  });
}

void pack_random(Stream& stream, const PackRandom& job) {
  WR_CHECK(stream.device().facts().kind == DeviceKind::kCpu);
  WR_CHECK(job.weight.kind == PackedKind::kBF16);
  cpu::as_cpu(stream).launch(
      "pack_random", [job](cpu::ComputePool& pool) { pack_panels<RandomPacker>(job, pool); });
}

void pack_random(Stream& stream, const PackRandomMxfp4& job) {
  WR_CHECK(stream.device().facts().kind == DeviceKind::kCpu);
  WR_CHECK(job.weight.kind == PackedKind::kMxfp4);
  cpu::as_cpu(stream).launch(
      "pack_random", [job](cpu::ComputePool& pool) { pack_panels<RandomMxfp4Packer>(job, pool); });
}

}  // namespace warprow
