// SPDX-License-Identifier: Apache-2.0
#include "layers/parameter_loader.h"

#include "base/check.h"
#include "base/error.h"
#include "base/math.h"
#include "kernels/linear/cpu/pack.h"
#include "layers/pack_tensor.h"
#include "layers/random_mxfp4.h"
#include "layers/random_quant_matrix.h"
#include "layers/rounded_matrix.h"
#include "weights/dequantize.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace warprow {

namespace {

// FNV-1a of the name, so that each tensor has its own random numbers.
uint64_t seed_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

float dummy_scale(const TensorSpec& spec) {
  return 2.0F / std::sqrt(static_cast<float>(spec.cols));
}

// The rank's rows and columns of the matrix.
struct Part {
  IndexRange rows;
  IndexRange cols;
};

Part part_of(const TensorSpec& spec, const ShardAlignment& alignment) {
  return {value_or_throw(shard_rows(spec, alignment)), value_or_throw(shard_cols(spec, alignment))};
}

// The half of the matrix that this tensor has (TensorSpec::second_half).
TensorSpec half_of(const TensorSpec& spec, const std::string& tensor) {
  TensorSpec half = spec;
  half.name = tensor;
  half.rows /= 2;
  return half;
}

// The place of the part's first element in the whole tensor.
int64_t first_element(const TensorSpec& spec, const Part& part, int64_t tensor_cols) {
  return (spec.slice.first_row + part.rows.begin) * tensor_cols + spec.slice.first_col +
         part.cols.begin;
}

}  // namespace

ParameterLoader::ParameterLoader(const Checkpoint& checkpoint,
                                 Stream& stream,
                                 Arena& arena,
                                 LoadFormat format,
                                 DType rows,
                                 Progress progress,
                                 const Quantisation& quantisation)
    : checkpoint_(checkpoint),
      stream_(stream),
      arena_(arena),
      format_(format),
      rows_(rows),
      progress_(std::move(progress)),
      quantisation_(quantisation) {}

std::unique_ptr<QuantMatrix> ParameterLoader::quant_matrix_of(const TensorSpec& spec) const {
  const int64_t rows = spec.slice.tensor_rows > 0 ? spec.slice.tensor_rows : spec.rows;
  const int64_t cols = spec.slice.tensor_cols > 0 ? spec.slice.tensor_cols : spec.cols;
  const QuantConfig& config = checkpoint_.quantisation();
  const bool head = rounds_head() && (spec.of_head || spec.of_tied_head);
  const bool rounds = head || ((spec.of_linear || spec.of_experts) && spec.rows % 16 == 0);
  if (format_ != LoadFormat::kDummy) {
    auto found = value_or_throw(find_quant_matrix(checkpoint_, spec.name, rows, cols));
    if (found != nullptr || !rounds || !rounds_whole_groups(cols)) {
      return found;
    }
    const TensorSource& tensor = *value_or_throw(checkpoint_.require_values(spec.name));
    if (is_quantised(tensor.type) || tensor.rows != rows || tensor.cols != cols) {
      return nullptr;  // a matrix of GGUF stays as it is; another shape is refused later
    }
    const auto row = [&tensor](int64_t at, float* out) {
      dequantize_row(
          tensor.type, tensor.data + static_cast<size_t>(at) * tensor.row_bytes, out, tensor.cols);
    };
    return rounded_matrix(*quantisation_.rounds_to, rows, cols, rounded_group(cols), row);
  }
  const bool packed = config.number.has_value() && !config.ignores(spec.name) && !head;
  if (!rounds || (!packed && !rounds_whole_groups(cols))) {
    return nullptr;
  }
  QuantForm form;
  form.number = packed ? *config.number : *quantisation_.rounds_to;
  const bool f8 = form.number == QuantNumber::kF8;
  const int64_t group = packed ? config.group_size : rounded_group(cols);
  const bool known_group = group == 32 || group == 64;
  form.group = !f8 && known_group ? static_cast<int32_t>(group) : 128;
  form.wide_inputs = !packed || config.int8_inputs;
  const bool kept = packed && config.inputs == QuantInputs::kKept;
  form.inputs = !f8 || kept         ? F8Inputs::kNone
                : config.has_blocks ? F8Inputs::kGroup
                                    : F8Inputs::kRow;
  TensorSpec whole = spec;
  whole.cols = cols;
  return std::make_unique<RandomQuantMatrix>(
      form, seed_of(spec.name), dummy_scale(whole), rows, cols);
}

bool ParameterLoader::rounds_head() const {
  return quantisation_.rounds_to == QuantNumber::kQ8 && device().kind == DeviceKind::kCpu;
}

bool ParameterLoader::rounds_whole_groups(int64_t cols) const {
  return quantisation_.rounds_to.has_value() &&
         (quantisation_.rounds_to != QuantNumber::kQ8 || cols % Quantisation::kLeastGroup == 0);
}

int32_t ParameterLoader::rounded_group(int64_t cols) const {
  return cols % quantisation_.group == 0 ? quantisation_.group : Quantisation::kLeastGroup;
}

const WeightFormat* ParameterLoader::quant_format_of(const TensorSpec& spec) const {
  const bool possible = checkpoint_.quantisation().method != QuantMethod::kNone ||
                        quantisation_.rounds_to.has_value();
  if (!possible || spec.order != RowOrder::kPlain || spec.transposed) {
    return nullptr;
  }
  const auto [matrix, is_new] = quant_matrices_.try_emplace(spec.name);
  if (is_new) {
    matrix->second = quant_matrix_of(spec);
  }
  if (matrix->second == nullptr) {
    return nullptr;
  }
  const ShardAlignment alignment{1, matrix->second->form().col_unit};
  const Part part = part_of(spec, alignment);
  const std::string key = fmt::format("{} {} {} {} {}",
                                      spec.name,
                                      part.rows.count,
                                      part.cols.count,
                                      spec.of_linear,
                                      spec.of_experts);
  const auto [format, made] = quant_formats_.try_emplace(key);
  if (made) {
    format->second = std::make_unique<WeightFormat>(quant_format(*matrix->second,
                                                                 device(),
                                                                 spec,
                                                                 quantisation_.exact,
                                                                 quantisation_.rounds_inputs,
                                                                 part.rows.count,
                                                                 part.cols.count));
  }
  return format->second.get();
}

std::vector<const DeviceForm*> ParameterLoader::forms_of(std::span<const TensorSpec> specs) const {
  std::vector<const DeviceForm*> forms;
  forms.reserve(specs.size());
  bool tiles = false;
  bool alike = true;
  bool of_tensors = true;  // of one each, so that tiles are those of GGUF types
  for (const TensorSpec& spec : specs) {
    const WeightFormat& format = format_of(spec);
    forms.push_back(&form_of(format));
    of_tensors = of_tensors && format.matrix == nullptr;
    tiles = tiles || forms.back()->repack == Repack::kQuantTiles;
    alike = alike && forms.back()->repack == forms.front()->repack &&
            same_product(*forms.back(), *forms.front());
  }
  if (!tiles || alike) {
    return forms;
  }
  const DeviceForm* common = of_tensors ? common_tiles_form(forms) : nullptr;
  for (const DeviceForm*& form : forms) {
    if (form->repack == Repack::kQuantTiles) {
      form = common != nullptr ? common : &bf16_rows_form();
    }
  }
  return forms;
}

const WeightFormat& ParameterLoader::random_format_of(const TensorSpec& spec) const {
  const bool mxfp4 =
      spec.format != nullptr && form_of(*spec.format).product.kind == PackedKind::kMxfp4;
  return mxfp4 ? *spec.format : random_format();
}

const WeightFormat& ParameterLoader::format_of(const TensorSpec& spec) const {
  if (const WeightFormat* quant = spec.format == nullptr ? quant_format_of(spec) : nullptr) {
    return *quant;
  }
  if (format_ == LoadFormat::kDummy) {
    return random_format_of(spec);
  }
  if (spec.format != nullptr) {
    return *spec.format;
  }
  const TensorType type = value_or_throw(checkpoint_.require_values(spec.name))->type;
  const WeightFormat& rows = weight_format_of(type);
  if ((!spec.of_linear && !spec.of_head && !spec.of_experts) || spec.transposed) {
    return rows;
  }
  const Part part = part_of(spec, rows.alignment);
  return linear_format_of(type, device(), part.rows.count, part.cols.count);
}

bool ParameterLoader::keeps_mxfp4_blocks(std::initializer_list<std::string> names) const {
  return reads_checkpoint() && device().compute_capability == 90 && rows_ == DType::kBF16 &&
         std::ranges::all_of(names, [this](const std::string& name) {
           const TensorSource* tensor = checkpoint_.find(name);
           return tensor != nullptr && tensor->type == TensorType::kMXFP4;
         });
}

void ParameterLoader::report(size_t bytes) {
  bytes_read_ += static_cast<int64_t>(bytes);
  if (progress_) {
    progress_(bytes_read_);
  }
}

bool ParameterLoader::stacks(std::span<const TensorSpec> specs) const {
  const std::vector<const DeviceForm*> forms = forms_of(specs);
  for (size_t i = 1; i < specs.size(); ++i) {
    const WeightFormat& upper = format_of(specs[i - 1]);
    const WeightFormat& lower = format_of(specs[i]);
    const IndexRange rows = value_or_throw(shard_rows(specs[i - 1], upper.alignment));
    const bool whole_groups = rows.count % upper.alignment.rows == 0;
    if (!whole_groups ||
        (forms[i]->repack == Repack::kKept && upper.sources.size() != lower.sources.size()) ||
        !warprow::stacks(*forms[i - 1], *forms[i])) {
      return false;
    }
  }
  return true;
}

void ParameterLoader::check_stack(std::span<const TensorSpec> specs) const {
  const std::vector<const DeviceForm*> forms = forms_of(specs);
  for (size_t i = 1; i < specs.size(); ++i) {
    const WeightFormat& upper = format_of(specs[i - 1]);
    const WeightFormat& lower = format_of(specs[i]);
    const IndexRange rows = value_or_throw(shard_rows(specs[i - 1], upper.alignment));
    const bool panels = forms[i]->repack == Repack::kPanels;
    const int64_t unit =
        panels ? std::lcm(upper.alignment.rows, cpu::kRowsPerPanel) : upper.alignment.rows;
    if ((forms[i]->repack == Repack::kKept && upper.sources.size() != lower.sources.size()) ||
        !same_product(*forms[i - 1], *forms[i]) || rows.count % unit != 0) {
      throw StartupError(ErrorCode::kUnsupported,
                         fmt::format("tensors {} ({}, {} rows) and {} ({}) cannot be one matrix",
                                     specs[i - 1].name,
                                     upper.name,
                                     rows.count,
                                     specs[i].name,
                                     lower.name));
    }
  }
}

PackedWeight ParameterLoader::stacked(std::span<const TensorSpec> specs) {
  check_stack(specs);
  const auto is_quantised = [this](const TensorSpec& spec) {
    return format_of(spec).matrix != nullptr;
  };
  if (format_ == LoadFormat::kDummy && !std::all_of(specs.begin(), specs.end(), is_quantised)) {
    return random(specs);
  }
  int64_t rows = 0;
  int64_t cols = 0;
  for (const TensorSpec& spec : specs) {
    const Part part = part_of(spec, format_of(spec).alignment);
    rows += part.rows.count;
    WR_CHECK(cols == 0 || cols == part.cols.count, "{} has {} columns", spec.name, part.cols.count);
    cols = part.cols.count;
  }
  size_t bytes = 0;
  const std::vector<PlacedSource> sources = place(specs, bytes);
  const std::vector<const DeviceForm*> forms = forms_of(specs);
  PackedWeight weight = sized_product(*forms.front(), rows, cols);
  for (const DeviceForm* form : forms) {
    weight.input_scale = std::max(weight.input_scale, form->product.input_scale);
  }
  std::byte* data = arena_.alloc_bytes(bytes);
  weight.data = data;
  for (const PlacedSource& source : sources) {
    load(source, weight, data);
  }
  return weight;
}

TensorRegion ParameterLoader::region_of(const TensorSpec& spec,
                                        const WeightFormat& format,
                                        const SourcePart& part) {
  const TensorSource* tensor = value_or_throw(checkpoint_.require(part_name(spec.name, part)));
  if (tensor->type != part.type) {
    throw StartupError(ErrorCode::kCorrupt,
                       fmt::format("tensor {} has the type {}, the format {} wants {}",
                                   tensor->name,
                                   tensor_type_name(tensor->type),
                                   format.name,
                                   tensor_type_name(part.type)));
  }
  if (part.folded && tensor->shape.size() > 1) {
    TensorSource folded = *tensor;
    const int64_t times = tensor->shape[tensor->shape.size() - 2];
    folded.rows /= std::max<int64_t>(1, times);
    folded.cols *= times;
    folded.row_bytes *= static_cast<size_t>(times);
    tensor = &folded_.emplace_back(std::move(folded));
  }
  return value_or_throw(rank_region(spec, format, part, *tensor));
}

// Source after source, each for all specs: the parts of one tensor of a matrix are contiguous.
std::vector<ParameterLoader::PlacedSource> ParameterLoader::place(std::span<const TensorSpec> specs,
                                                                  size_t& bytes) {
  std::vector<PlacedSource> placed;
  const std::vector<const DeviceForm*> forms = forms_of(specs);
  const WeightFormat& first = format_of(specs.front());
  const bool kept = forms.front()->repack == Repack::kKept;
  for (size_t i = 0; i < (kept ? first.sources.size() : 1); ++i) {
    bytes = round_up(bytes, kSourceAlignment);
    for (size_t s = 0; s < specs.size(); ++s) {
      const TensorSpec& spec = specs[s];
      const WeightFormat& format = format_of(spec);
      const DeviceForm& form = *forms[s];
      if (format.matrix != nullptr) {
        const Part part = part_of(spec, format.alignment);
        const QuantPart read{spec.slice.first_row + part.rows.begin,
                             part.rows.count,
                             spec.slice.first_col + part.cols.begin,
                             part.cols.count};
        placed.push_back(
            {&spec, &form, {}, {}, {}, read.num_rows, read.num_cols, bytes, format.matrix, read});
        bytes += stored_bytes(form, {}, read.num_rows, read.num_cols);
        continue;
      }
      const SourcePart& part = format.sources[i];
      TensorRegion region;
      TensorRegion second_half;
      if (spec.second_half.empty()) {
        region = region_of(spec, format, part);
      } else {
        region = region_of(half_of(spec, spec.name), format, part);
        second_half = region_of(half_of(spec, spec.second_half), format, part);
      }
      TensorRegion scales;
      if (!kept && format.sources.size() > 1) {
        scales = region_of(spec, format, format.sources[1]);
      }
      const Part matrix = part_of(spec, format.alignment);
      placed.push_back(
          {&spec, &form, region, scales, second_half, matrix.rows.count, matrix.cols.count, bytes});
      bytes += kept ? stored_bytes(form, part, region.rows(), region.cols())
                    : stored_bytes(form, part, matrix.rows.count, matrix.cols.count);
    }
  }
  return placed;
}

void ParameterLoader::load(const PlacedSource& source,
                           const PackedWeight& weight,
                           std::byte* data) {
  const TensorSpec& spec = *source.spec;
  std::byte* dst = data + source.offset;
  if (source.matrix != nullptr) {
    load_quantised(source, weight, dst);
    return;
  }
  if (source.form->repack == Repack::kPanels) {
    PackedWeight part = weight;
    part.n = static_cast<int32_t>(source.rows);
    pack_tensor(stream_,
                {&checkpoint_,
                 source.region,
                 part,
                 dst,
                 spec.order,
                 spec.head_dim,
                 source.scales,
                 spec.transposed});
    report(source.region.bytes() + source.scales.bytes());
    return;
  }
  Repack repack = source.form->repack;
  if (spec.transposed && repack == Repack::kKept) {
    repack = rows_ == DType::kF32 ? Repack::kF32Rows : Repack::kBf16Rows;
  }
  WeightUpload upload{
      source.region, dst, repack, spec.order, spec.head_dim, source.scales, source.second_half};
  upload.transposed = spec.transposed;
  upload.tiles = weight;
  upload.tiles.n = static_cast<int32_t>(source.rows);
  uploads_.push_back(upload);
}

// Loads one part of a quantised matrix to dst.
void ParameterLoader::load_quantised(const PlacedSource& source,
                                     const PackedWeight& weight,
                                     std::byte* dst) {
  PackedWeight own = weight;
  own.n = static_cast<int32_t>(source.rows);
  if (source.form->repack == Repack::kPanels) {
    PackTensor job;
    job.checkpoint = &checkpoint_;
    job.weight = own;
    job.dst = dst;
    job.matrix = source.matrix;
    job.part = source.part;
    pack_tensor(stream_, job);
    report(source.matrix->bytes());
    return;
  }
  if (format_ == LoadFormat::kDummy) {
    const auto& matrix = static_cast<const RandomQuantMatrix&>(*source.matrix);
    quant_fills_.push_back({matrix.random(), source.part.row, source.part.col, own, dst});
    return;
  }
  WeightUpload upload;
  upload.dst = dst;
  upload.repack = source.form->repack;
  upload.matrix = source.matrix;
  upload.part = source.part;
  upload.tiles = own;
  uploads_.push_back(upload);
}

PackedWeight ParameterLoader::random(std::span<const TensorSpec> specs) {
  const WeightFormat& format = random_format_of(specs[0]);
  const DeviceForm& form = form_of(format);
  const int64_t cols = part_of(specs[0], format.alignment).cols.count;
  int64_t rows = 0;
  size_t bytes = 0;
  for (const TensorSpec& spec : specs) {
    const Part part = part_of(spec, format.alignment);
    WR_CHECK_EQ(part.cols.count, cols);
    rows += part.rows.count;
    bytes += stored_bytes(form, {}, part.rows.count, cols);
  }
  PackedWeight weight = sized_product(form, rows, cols);
  std::byte* dst = arena_.alloc_bytes(bytes);
  weight.data = dst;
  for (const TensorSpec& spec : specs) {
    const Part part = part_of(spec, format.alignment);
    add_random(spec, form, part.rows.count, cols, dst);
    dst += stored_bytes(form, {}, part.rows.count, cols);
  }
  return weight;
}

// A rank's part of one random matrix.
void ParameterLoader::add_random(
    const TensorSpec& spec, const DeviceForm& form, int64_t rows, int64_t cols, std::byte* dst) {
  const Part part = part_of(spec, random_format_of(spec).alignment);
  const int64_t tensor_cols = spec.slice.tensor_cols > 0 ? spec.slice.tensor_cols : spec.cols;
  const int64_t first = first_element(spec, part, tensor_cols);
  const uint64_t seed = seed_of(spec.name);
  const float scale = dummy_scale(spec);
  const PackedWeight panels = sized_product(form, rows, cols);
  if (form.product.kind == PackedKind::kMxfp4) {
    const RandomMxfp4 random{seed, scale, first, tensor_cols, rows, cols};
    if (form.repack == Repack::kPanels) {
      pack_random(stream_, PackRandomMxfp4{panels, dst, random, spec.order, spec.head_dim});
    } else {
      tile_fills_.push_back({dst,
                             rows,
                             cols,
                             mxfp4_rows(spec.order),
                             seed,
                             first,
                             tensor_cols,
                             random_mxfp4_exponent(random) + 127});
    }
    return;
  }
  if (form.repack == Repack::kPanels) {
    pack_random(stream_, PackRandom{panels, dst, seed, scale, first, tensor_cols});
    return;
  }
  FillRandomArgs fill{dst, rows * cols, seed, scale, first};
  fill.type = rows_;
  if (cols != tensor_cols) {
    fill.cols = cols;
    fill.stride = tensor_cols;
  }
  fills_.push_back(fill);
}

std::vector<float> ParameterLoader::read_vector(const TensorSpec& spec) const {
  const IndexRange shard = value_or_throw(shard_cols(spec, {}));
  if (format_ == LoadFormat::kDummy) {
    const float value = spec.name.ends_with("bias") ? 0.0F : 1.0F;
    return std::vector<float>(static_cast<size_t>(shard.count), value);
  }
  const TensorSource& tensor = *value_or_throw(checkpoint_.require_values(spec.name));
  const WeightFormat& format = weight_format_of(tensor.type);
  const TensorRegion region =
      value_or_throw(rank_region(spec, format, format.sources.front(), tensor));
  std::vector<float> values(static_cast<size_t>(shard.count));
  dequantize_row(region.type(), region.row(0), values.data(), shard.count);
  std::vector<float> part(values.size());
  for (size_t i = 0; i < part.size(); ++i) {  // a part consists of whole heads where order matters
    const auto element = static_cast<int64_t>(i);
    part[i] = values[static_cast<size_t>(source_row(spec.order, element, spec.head_dim))];
  }
  return part;
}

View<const float, 1> ParameterLoader::vector(const TensorSpec& spec) {
  std::vector<float> values = read_vector(spec);
  if (format_ != LoadFormat::kDummy) {
    const TensorSource& tensor = *value_or_throw(checkpoint_.require(spec.name));
    report(tensor_row_bytes(tensor.type, static_cast<int64_t>(values.size())));
  }
  return constants(std::move(values));
}

View<const float, 1> ParameterLoader::constants(std::vector<float> values) {
  constants_.push_back(std::move(values));
  const std::vector<float>& kept = constants_.back();
  auto* data = arena_.alloc<float>(static_cast<int64_t>(kept.size()));
  stream_.copy_to_device(data, kept.data(), kept.size() * sizeof(float));
  return make_view<const float>(data, static_cast<int64_t>(kept.size()));
}

void ParameterLoader::finish() {
  for (const FillRandomArgs& fill : fills_) {
    fill_random(stream_, fill);
  }
  for (const cuda::FillMxfp4Args& fill : tile_fills_) {
    cuda::fill_mxfp4(stream_, fill);
  }
  for (const cuda::FillQuantArgs& fill : quant_fills_) {
    cuda::fill_quant(stream_, fill);
  }
  upload_weights(stream_.device(), checkpoint_, uploads_, [this](int64_t bytes) {
    if (progress_) {
      progress_(bytes_read_ + bytes);
    }
  });
  uploads_.clear();
  fills_.clear();
  tile_fills_.clear();
  quant_fills_.clear();
  stream_.synchronize();
  constants_.clear();
}

}  // namespace warprow
