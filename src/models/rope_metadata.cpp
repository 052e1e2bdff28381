// SPDX-License-Identifier: Apache-2.0
#include "models/rope_metadata.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr float kMaxPositions = 1 << 29;

// Fields of one object. Null is absent, as in transformers. The first bad value is kept as an error.
class RopeFields {
 public:
  explicit RopeFields(const nlohmann::json& object) : object_(object) {}

  [[nodiscard]] const nlohmann::json* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  // A number in (0, limit].
  float positive_or(const char* key, float fallback, float limit = 1e9F) {
    const nlohmann::json* value = find(key);
    if (value == nullptr) {
      return fallback;
    }
    const float number = value->is_number() ? value->get<float>() : 0.0F;
    if (!(number > 0.0F && number <= limit)) {
      refuse(key, value->dump(), fmt::format("a number above 0, up to {}", limit));
      return fallback;
    }
    return number;
  }
  bool bool_or(const char* key, bool fallback) {
    const nlohmann::json* value = find(key);
    if (value != nullptr && !value->is_boolean()) {
      refuse(key, value->dump(), "true or false");
    }
    return value != nullptr && value->is_boolean() ? value->get<bool>() : fallback;
  }
  std::vector<float> factors(const char* key, int32_t count) {
    const nlohmann::json* list = find(key);
    const std::string wanted = fmt::format("{} numbers above 0", count);
    std::vector<float> out;
    if (list == nullptr || !list->is_array() || list->size() != static_cast<size_t>(count)) {
      refuse(key, list == nullptr ? "missing" : list->dump(), wanted);
      return out;
    }
    for (const nlohmann::json& factor : *list) {
      out.push_back(factor.is_number() ? factor.get<float>() : 0.0F);
      if (!(out.back() > 0.0F && std::isfinite(out.back()))) {
        refuse(key, factor.dump(), wanted);
      }
    }
    return out;
  }
  [[nodiscard]] std::string type() const {
    const nlohmann::json* type = find("rope_type");
    type = type == nullptr ? find("type") : type;
    const std::string name =
        type != nullptr && type->is_string() ? type->get<std::string>() : "default";
    // Phi-3's early names. Its "yarn" has factors for short and long sequences.
    return name == "su" || (name == "yarn" && find("short_factor") != nullptr) ? "longrope" : name;
  }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  void refuse(const char* key, const std::string& value, const std::string& wanted) {
    if (error_.empty()) {
      error_ = fmt::format("model config: {} of the rope is {}, expected {}", key, value, wanted);
    }
  }

  const nlohmann::json& object_;
  std::string error_;
};

void read_yarn(RopeFields& fields, const RopeContext& context, RopeSpec& rope) {
  rope.scaling = RopeScaling::kYarn;
  const auto stretch =
      static_cast<float>(context.max_position) / static_cast<float>(rope.original_max_position);
  rope.factor = fields.positive_or("factor", stretch);
  rope.beta_fast = fields.positive_or("beta_fast", 32.0F);
  rope.beta_slow = fields.positive_or("beta_slow", 1.0F);
  rope.truncate = fields.bool_or("truncate", true);
  rope.attention_factor = yarn_attention_factor(rope.factor);
  const float mscale = fields.positive_or("mscale", 0.0F);
  const float mscale_all_dim = fields.positive_or("mscale_all_dim", 0.0F);
  if (mscale > 0.0F && mscale_all_dim > 0.0F) {
    rope.attention_factor = yarn_attention_factor(rope.factor, mscale) /
                            yarn_attention_factor(rope.factor, mscale_all_dim);
  }
  rope.attention_factor = fields.positive_or("attention_factor", rope.attention_factor);
}

void read_long_rope(RopeFields& fields, const RopeContext& context, RopeSpec& rope) {
  rope.scaling = RopeScaling::kLongRope;
  rope.short_factors = fields.factors("short_factor", rope.rot_dim / 2);
  rope.long_factors = fields.factors("long_factor", rope.rot_dim / 2);
  rope.max_len = context.max_position;
  const double original = rope.original_max_position;
  const double factor =
      fields.positive_or("factor", static_cast<float>(context.max_position / original));
  const double suggested =
      factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original));
  rope.attention_factor = fields.positive_or("attention_factor", static_cast<float>(suggested));
}

}  // namespace

float yarn_attention_factor(float factor, float mscale) {
  return factor <= 1.0F ? 1.0F
                        : static_cast<float>(0.1 * double{mscale} * std::log(double{factor}) + 1.0);
}

Result<int32_t> rotated_dims(int32_t head_dim, float partial) {
  const auto dims = static_cast<float>(head_dim) * partial;
  if (!(dims >= 2.0F && dims <= static_cast<float>(head_dim)) ||
      static_cast<int32_t>(dims) % 2 != 0) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format(
            "model config: rope dimensions is {}, expected an even number up to the head size",
            dims));
  }
  return static_cast<int32_t>(dims);
}

Result<RopeSpec> read_json_rope(const nlohmann::json& object,
                                RopeSpec rope,
                                const RopeContext& context) {
  if (!object.is_object()) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("model config: rope_scaling is {}, expected an object", object.dump()));
  }
  RopeFields fields(object);
  const std::string type = fields.type();
  rope.theta = fields.positive_or("rope_theta", rope.theta, 1e30F);
  if (type == "proportional") {
    rope.scaling = RopeScaling::kProportional;
    rope.factor = fields.positive_or("factor", 1.0F);
    rope.rot_dim = context.head_dim;
    const float part = fields.positive_or("partial_rotary_factor", 1.0F, 1.0F);
    rope.num_rotated =
        static_cast<int32_t>(std::floor(part * static_cast<float>(context.head_dim) / 2.0F));
  } else if (fields.find("partial_rotary_factor") != nullptr) {
    auto dims = rotated_dims(context.head_dim, fields.positive_or("partial_rotary_factor", 1.0F));
    if (!dims) {
      return tl::unexpected(dims.error());
    }
    rope.rot_dim = *dims;
  }
  const auto max_position = static_cast<float>(context.max_position);
  rope.original_max_position =
      context.original_max_position > 0
          ? context.original_max_position
          : static_cast<int32_t>(fields.positive_or(
                "original_max_position_embeddings", max_position, kMaxPositions));
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = fields.positive_or("factor", 1.0F);
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    rope.factor = fields.positive_or("factor", 1.0F);
    rope.low_freq_factor = fields.positive_or("low_freq_factor", 1.0F);
    rope.high_freq_factor = fields.positive_or("high_freq_factor", 4.0F);
  } else if (type == "yarn") {
    read_yarn(fields, context, rope);
  } else if (type == "longrope") {
    read_long_rope(fields, context, rope);
  } else if (type != "default" && type != "dynamic" && type != "proportional") {
    // "dynamic" changes theta beyond max_position_embeddings only, and no sequence is longer.
    return fail(ErrorCode::kUnsupported,
                fmt::format("rope_type {} is not supported (default, linear, dynamic, llama3, "
                            "proportional, yarn and longrope are)",
                            type));
  }
  if (!fields.error().empty()) {
    return fail(ErrorCode::kCorrupt, fields.error());
  }
  return rope;
}

}  // namespace warprow
