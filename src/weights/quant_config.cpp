// SPDX-License-Identifier: Apache-2.0
#include "weights/quant_config.h"

#include "files/printable.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;

tl::unexpected<Error> refuse(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kUnsupported, fmt::format("'{}': quantization_config: {}", path, why));
}

std::string text_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// An integer, or the fallback where there is none or null.
Result<int64_t> integer_of(const json& object,
                           const char* key,
                           int64_t fallback,
                           const std::string& path) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) {
    return fallback;
  }
  if (!at->is_number_integer()) {
    return refuse(path, fmt::format("{} is {}, not an integer", key, printable(at->dump())));
  }
  return at->get<int64_t>();
}

Result<void> read_block(const json& object,
                        const char* key,
                        QuantConfig& out,
                        const std::string& path) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) {
    return {};
  }
  const bool two = at->is_array() && at->size() == 2 && (*at)[0].is_number_integer() &&
                   (*at)[1].is_number_integer();
  if (!two || (*at)[0].get<int64_t>() < 1 || (*at)[1].get<int64_t>() < 1) {
    return refuse(path, fmt::format("{} is {}, not two sizes", key, printable(at->dump())));
  }
  out.block_rows = (*at)[0].get<int64_t>();
  out.block_cols = (*at)[1].get<int64_t>();
  out.has_blocks = true;
  return {};
}

void read_ignored(const json& object, const char* key, QuantConfig& out) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_array()) {
    return;
  }
  for (const json& name : *at) {
    if (name.is_string()) {
      out.ignored.push_back(name.get<std::string>());
    }
  }
}

Result<void> read_fp8(const json& object, QuantConfig& out, const std::string& path) {
  out.method = QuantMethod::kFp8;
  out.number = QuantNumber::kF8;
  const std::string scheme = text_of(object, "activation_scheme");
  if (!scheme.empty() && scheme != "dynamic" && scheme != "static") {
    return refuse(path,
                  fmt::format("activation_scheme {} is not supported (dynamic and static are)",
                              printable(scheme)));
  }
  out.inputs = scheme == "static" ? QuantInputs::kStatic : QuantInputs::kDynamic;
  read_ignored(object, "modules_to_not_convert", out);
  read_ignored(object, "ignored_layers", out);
  return read_block(object, "weight_block_size", out, path);
}

// compressed-tensors' input_activations, if they are 8-bit numbers of this type; else null.
const json* inputs_of_8_bits(const json& group, std::string_view type) {
  const auto inputs = group.find("input_activations");
  if (inputs == group.end() || !inputs->is_object() || text_of(*inputs, "type") != type) {
    return nullptr;
  }
  const auto bits = inputs->find("num_bits");
  return bits == inputs->end() || *bits == 8 ? &*inputs : nullptr;
}

// 8-bit floats are rounded, everything else stays.
QuantInputs inputs_of(const json& group) {
  const json* inputs = inputs_of_8_bits(group, "float");
  if (inputs == nullptr) {
    return QuantInputs::kKept;
  }
  const auto dynamic = inputs->find("dynamic");
  return dynamic != inputs->end() && *dynamic == true ? QuantInputs::kDynamic
                                                      : QuantInputs::kStatic;
}

// All groups of modules have the formats that tensors say by themselves; here only what contradicts that is refused.
Result<void> read_compressed(const json& object, QuantConfig& out, const std::string& path) {
  out.method = QuantMethod::kCompressedTensors;
  read_ignored(object, "ignore", out);
  constexpr std::array kFormats = {"float-quantized",
                                   "pack-quantized",
                                   "int-quantized",
                                   "naive-quantized",
                                   "dense",
                                   "mixed-precision"};
  const auto check_format = [&](const json& of) -> Result<void> {
    const std::string format = text_of(of, "format");
    if (!format.empty() && std::find(kFormats.begin(), kFormats.end(), format) == kFormats.end()) {
      return refuse(
          path,
          fmt::format(
              "format {} is not supported ({} are)", printable(format), fmt::join(kFormats, ", ")));
    }
    return {};
  };
  if (Result<void> done = check_format(object); !done) {
    return done;
  }
  const auto groups = object.find("config_groups");
  if (groups == object.end() || !groups->is_object()) {
    return {};
  }
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) {
      return refuse(path, fmt::format("config_groups.{} is not an object", printable(name)));
    }
    if (Result<void> done = check_format(group); !done) {
      return done;
    }
    const auto weights = group.find("weights");
    if (weights == group.end() || !weights->is_object()) {
      continue;
    }
    const Result<int64_t> bits = integer_of(*weights, "num_bits", 8, path);
    if (!bits || (*bits != 4 && *bits != 8) ||
        (*bits == 4 && text_of(*weights, "type") == "float")) {
      return bits ? refuse(path,
                           fmt::format("config_groups.{}.weights has {} bits of type {}; int 4, "
                                       "int 8 and float 8 are supported",
                                       printable(name),
                                       *bits,
                                       printable(text_of(*weights, "type"))))
                  : tl::unexpected(bits.error());
    }
    const Result<int64_t> inputs = integer_of(*weights, "group_size", -1, path);
    if (!inputs) {
      return tl::unexpected(inputs.error());
    }
    if (!out.number) {
      out.number = *bits == 4                             ? QuantNumber::kQ4
                   : text_of(*weights, "type") == "float" ? QuantNumber::kF8
                                                          : QuantNumber::kQ8;
      out.group_size = *inputs;
      out.inputs = inputs_of(group);
      out.int8_inputs = inputs_of_8_bits(group, "int") != nullptr;
    }
    if (Result<void> done = read_block(*weights, "block_structure", out, path); !done) {
      return done;
    }
  }
  return {};
}

Result<void> read_packed(const json& object,
                         QuantMethod method,
                         QuantConfig& out,
                         const std::string& path) {
  out.method = method;
  read_ignored(object, "modules_to_not_convert", out);
  const Result<int64_t> bits =
      integer_of(object, object.contains("w_bit") ? "w_bit" : "bits", 4, path);
  const Result<int64_t> group = integer_of(
      object, object.contains("q_group_size") ? "q_group_size" : "group_size", 128, path);
  if (!bits || !group) {
    return tl::unexpected(bits ? group.error() : bits.error());
  }
  if (*bits != 4 && (*bits != 8 || method == QuantMethod::kAwq)) {
    return refuse(path,
                  fmt::format("bits is {}; {} supported",
                              *bits,
                              method == QuantMethod::kAwq ? "4 is" : "4 and 8 are"));
  }
  if (*group != -1 && *group < 1) {
    return refuse(path, fmt::format("group_size is {}; -1 or at least 1 is allowed", *group));
  }
  out.bits = static_cast<int32_t>(*bits);
  out.number = *bits == 4 ? QuantNumber::kQ4 : QuantNumber::kQ8;
  out.group_size = *group;
  if (method == QuantMethod::kAwq) {
    const std::string version = text_of(object, "version");
    if (!version.empty() && version != "gemm" && version != "GEMM") {
      return refuse(path,
                    fmt::format("AWQ's version {} is not supported (gemm is)", printable(version)));
    }
    return {};
  }
  const std::string format = text_of(object, "checkpoint_format");
  if (!format.empty() && format != "gptq" && format != "gptq_v2") {
    return refuse(path,
                  fmt::format("checkpoint_format {} is not supported (gptq and gptq_v2 are)",
                              printable(format)));
  }
  out.zeros_less_one = format != "gptq_v2";
  return {};
}

Result<void> read_modelopt(const json& object, QuantConfig& out, const std::string& path) {
  out.method = QuantMethod::kModelOptFp8;
  out.number = QuantNumber::kF8;
  read_ignored(object, "ignore", out);
  read_ignored(object, "exclude_modules", out);
  const std::string algorithm = text_of(object, "quant_algo");
  if (!algorithm.starts_with("FP8")) {
    return refuse(
        path,
        fmt::format("ModelOpt's quant_algo {} is not supported (FP8 is)", printable(algorithm)));
  }
  out.inputs = algorithm == "FP8" ? QuantInputs::kStatic : QuantInputs::kDynamic;
  return {};
}

}  // namespace

Result<QuantConfig> QuantConfig::read(const json& config, const std::string& path) {
  QuantConfig out;
  if (!config.is_object()) {
    return fail(ErrorCode::kCorrupt, fmt::format("'{}' is not a JSON object", path));
  }
  auto found = config.find("quantization_config");
  if (found == config.end()) {
    found = config.find("compression_config");
  }
  if (found == config.end() || found->is_null()) {
    return out;
  }
  if (!found->is_object()) {
    return refuse(path, "it is not an object");
  }
  const std::string method = text_of(*found, "quant_method");
  Result<void> done;
  if (method == "mxfp4") {
    out.method = QuantMethod::kMxfp4;
  } else if (method == "fp8") {
    done = read_fp8(*found, out, path);
  } else if (method == "compressed-tensors") {
    done = read_compressed(*found, out, path);
  } else if (method == "awq") {
    done = read_packed(*found, QuantMethod::kAwq, out, path);
  } else if (method == "gptq") {
    done = read_packed(*found, QuantMethod::kGptq, out, path);
  } else if (method == "modelopt") {
    done = read_modelopt(*found, out, path);
  } else {
    done = refuse(path,
                  fmt::format("quant_method {} is not supported (awq, compressed-tensors, fp8, "
                              "gptq, modelopt and mxfp4 are)",
                              method.empty() ? "without a name" : printable(method)));
  }
  return done.map([&] { return std::move(out); });
}

bool QuantConfig::ignores(std::string_view weight) const {
  const std::string_view module = weight.substr(0, weight.rfind('.'));
  return std::any_of(ignored.begin(), ignored.end(), [&](const std::string& name) {
    return module == name ||
           (module.starts_with(name) && module.size() > name.size() && module[name.size()] == '.');
  });
}

}  // namespace warprow
