// SPDX-License-Identifier: Apache-2.0
#include "engine/pooling.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>

namespace warprow {
namespace {

// A shorter vector is not normalised but scaled by this, as torch does.
constexpr double kLeastLength = 1e-12;

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += double{a[i]} * double{b[i]};
  }
  return sum;
}

void normalize(std::span<float> values) {
  const double length = std::max(std::sqrt(dot(values, values)), kLeastLength);
  for (float& value : values) {
    value = static_cast<float>(value / length);
  }
}

void sigmoid(std::span<float> values) {
  for (float& value : values) {
    value = static_cast<float>(1.0 / (1.0 + std::exp(-double{value})));
  }
}

void softmax(std::span<float> values) {
  const double largest = *std::ranges::max_element(values);
  double sum = 0;
  for (const float value : values) {
    sum += std::exp(value - largest);
  }
  for (float& value : values) {
    value = static_cast<float>(std::exp(value - largest) / sum);
  }
}

}  // namespace

void append_vector(std::span<const float> vector, const VectorForm& form, std::vector<float>& out) {
  const size_t size = form.dimensions > 0 ? static_cast<size_t>(form.dimensions) : vector.size();
  WR_CHECK_LE(size, vector.size());
  const size_t before = out.size();
  out.insert(out.end(), vector.begin(), vector.begin() + static_cast<std::ptrdiff_t>(size));
  const std::span added = std::span(out).subspan(before);
  if (form.normalize) {
    normalize(added);
  }
  if (form.activation == LabelActivation::kSigmoid) {
    sigmoid(added);
  } else if (form.activation == LabelActivation::kSoftmax) {
    softmax(added);
  }
}

double cosine(std::span<const float> a, std::span<const float> b) {
  WR_CHECK_EQ(a.size(), b.size());
  const double lengths = std::sqrt(dot(a, a)) * std::sqrt(dot(b, b));
  return lengths > 0 ? dot(a, b) / lengths : 0.0;
}

}  // namespace warprow
