// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/dtype.h"
#include "tests/support/byte_writer.h"
#include "tests/support/random_model.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow::test {

// A random model whose projections are quantised as published checkpoints are, and its twin: the same values, dequantised,
// in float32. The writers are independent of the engine's readers.
struct QuantisedModel {
  RandomModel base;
  // Inputs of fp8_tensor stay, those of modelopt have a static scale, those of the other fp8 schemes dynamic ones.
  // int8_token: made for inputs of 8 bits.
  // fp8_block | fp8_tensor | fp8_channel | fp8_row | modelopt | int8_channel | int8_token | pack4 | pack4_zeros |
  // pack4_order | pack8 | pack_most8 | awq | gptq | gptq_v2 | gptq_order | gptq8. In pack_most8 a group's largest magnitude is the number 127 exactly.
  std::string scheme = "fp8_block";
  int64_t group = 64;  // of the schemes with groups
  bool head = false;   // the head too

  // Returns the directories of the model and of the twin.
  std::pair<std::string, std::string> write(const TempDir& quantised, const TempDir& twin) const {
    const TempDir plain;
    base.write(plain);
    nlohmann::json config = nlohmann::json::parse(read(plain.path() / "config.json"));
    twin.write("config.json", config.dump());
    config["quantization_config"] = quantization_config();
    quantised.write("config.json", config.dump());
    const std::string file = read(plain.path() / "model.safetensors");
    uint64_t header_size = 0;
    std::memcpy(&header_size, file.data(), 8);
    const nlohmann::json header = nlohmann::json::parse(file.substr(8, header_size));
    SafetensorsWriter q;
    SafetensorsWriter t;
    std::mt19937 random(base.seed + 1);
    for (const auto& [name, tensor] : header.items()) {
      const auto begin = tensor["data_offsets"][0].get<size_t>();
      const auto end = tensor["data_offsets"][1].get<size_t>();
      const auto* at = reinterpret_cast<const std::byte*>(file.data()) + 8 + header_size;
      const Bytes data(at + begin, at + end);
      const auto shape = tensor["shape"].get<std::vector<int64_t>>();
      if (!name.ends_with("_proj.weight") && !(head && name == "lm_head.weight")) {
        q.add(name, "BF16", shape, data);
        t.add(name, "BF16", shape, data);
        continue;
      }
      std::vector<float> w(data.size() / 2);
      for (size_t i = 0; i < w.size(); ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, data.data() + i * 2, 2);
        w[i] = bf16_to_f32(bits);
      }
      t.add_f32(name, shape, quantise(q, name, shape[0], shape[1], w, random));
    }
    quantised.write("model.safetensors", q.bytes());
    twin.write("model.safetensors", t.bytes());
    return {quantised.path().string(), twin.path().string()};
  }

  [[nodiscard]] nlohmann::json quantization_config() const {
    const auto compressed = [&](const char* format,
                                const nlohmann::json& weights) -> nlohmann::json {
      return {{"quant_method", "compressed-tensors"},
              {"format", format},
              {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}},
              {"ignore", {"lm_head"}}};
    };
    if (scheme == "fp8_block") {
      return {{"quant_method", "fp8"},
              {"weight_block_size", {128, 128}},
              {"activation_scheme", "dynamic"}};
    }
    if (scheme == "fp8_tensor" || scheme == "fp8_channel" || scheme == "fp8_row") {
      nlohmann::json config = compressed("float-quantized", {{"num_bits", 8}, {"type", "float"}});
      // The inputs of fp8_tensor stay as they are.
      if (scheme != "fp8_tensor") {
        config["config_groups"]["group_0"]["input_activations"] = {
            {"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"dynamic", true}};
      }
      return config;
    }
    if (scheme == "modelopt") {
      return {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}};
    }
    if (scheme == "int8_channel" || scheme == "int8_token") {
      nlohmann::json config = compressed("int-quantized", {{"num_bits", 8}, {"type", "int"}});
      if (scheme == "int8_token") {
        config["config_groups"]["group_0"]["input_activations"] = {
            {"num_bits", 8}, {"type", "int"}, {"strategy", "token"}, {"dynamic", true}};
      }
      return config;
    }
    if (scheme.starts_with("pack")) {
      return compressed("pack-quantized",
                        {{"num_bits", bits()}, {"type", "int"}, {"group_size", group}});
    }
    if (scheme == "awq") {
      return {{"quant_method", "awq"},
              {"bits", 4},
              {"group_size", group},
              {"zero_point", true},
              {"version", "gemm"}};
    }
    nlohmann::json gptq = {{"quant_method", "gptq"},
                           {"bits", bits()},
                           {"group_size", group},
                           {"desc_act", scheme == "gptq_order"}};
    if (scheme == "gptq_v2") {
      gptq["checkpoint_format"] = "gptq_v2";
    }
    return gptq;
  }

 private:
  static std::string read(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  [[nodiscard]] int64_t bits() const { return scheme.ends_with("8") ? 8 : 4; }

  // e4m3 by its definition: 4 bits of exponent with a bias of 7, 3 of fraction.
  static float f8_value(int number) {
    const int exponent = number >> 3 & 15;
    const int fraction = number & 7;
    const float magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(fraction), -9)
                                : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    return number >= 128 ? -magnitude : magnitude;
  }
  static uint8_t nearest_f8(float v) {
    static const std::vector<float> kMagnitudes = [] {
      std::vector<float> out;
      for (int number = 0; number < 127; ++number) {
        out.push_back(f8_value(number));
      }
      return out;
    }();
    const float magnitude = std::fabs(v);
    const auto above = std::lower_bound(kMagnitudes.begin(), kMagnitudes.end() - 1, magnitude);
    auto number = static_cast<int>(above - kMagnitudes.begin());
    if (number > 0) {
      const float below = magnitude - *(above - 1);
      const float over = *above - magnitude;
      number -= below < over || (below == over && number % 2 == 1) ? 1 : 0;
    }
    return static_cast<uint8_t>(number + (v < 0.0F ? 128 : 0));
  }

  // Writes the matrix's tensors and returns its values.
  std::vector<float> quantise(SafetensorsWriter& out,
                              const std::string& name,
                              int64_t rows,
                              int64_t cols,
                              const std::vector<float>& w,
                              std::mt19937& random) const {
    if (scheme.starts_with("fp8") || scheme == "modelopt" || scheme.starts_with("int8")) {
      return quantise_bytes(out, name, rows, cols, w);
    }
    return quantise_groups(out, name, rows, cols, w, random);
  }

  std::vector<float> quantise_bytes(SafetensorsWriter& out,
                                    const std::string& name,
                                    int64_t rows,
                                    int64_t cols,
                                    const std::vector<float>& w) const {
    const bool integers = scheme.starts_with("int8");
    const bool channel = scheme == "fp8_channel" || scheme == "int8_channel";  // scales in bf16
    const bool row = channel || scheme == "fp8_row" || scheme == "int8_token";
    const int64_t block_rows = scheme == "fp8_block" ? 128 : row ? 1 : rows;
    const int64_t block_cols = scheme == "fp8_block" ? 128 : cols;
    const int64_t down = (rows + block_rows - 1) / block_rows;
    const int64_t across = (cols + block_cols - 1) / block_cols;
    std::vector<float> scales(static_cast<size_t>(down * across));
    const auto scale_at = [&](int64_t r, int64_t c) -> float& {
      return scales[static_cast<size_t>(r / block_rows * across + c / block_cols)];
    };
    for (int64_t i = 0; i < rows * cols; ++i) {
      float& scale = scale_at(i / cols, i % cols);
      scale = std::max(scale, std::fabs(w[static_cast<size_t>(i)]) / (integers ? 127.0F : 448.0F));
    }
    if (channel) {
      std::transform(scales.begin(), scales.end(), scales.begin(), [](float v) {
        return bf16_to_f32(f32_to_bf16(v));
      });
    }
    if (scheme == "fp8_row") {  // as rounded_matrix.h says
      std::transform(scales.begin(), scales.end(), scales.begin(), [](float v) {
        const float nearest = bf16_to_f32(f32_to_bf16(v));
        return nearest < v ? bf16_to_f32(static_cast<uint16_t>(f32_to_bf16(v) + 1)) : nearest;
      });
    }
    Bytes numbers;
    std::vector<float> values;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float scale = scale_at(i / cols, i % cols);
      const float v = w[static_cast<size_t>(i)] / scale;
      const int q =
          integers ? static_cast<int>(std::clamp(std::round(v), -128.0F, 127.0F)) : nearest_f8(v);
      numbers.push_back(static_cast<std::byte>(q));
      values.push_back(scale * (integers ? static_cast<float>(q) : f8_value(q)));
    }
    out.add(name, integers ? "I8" : "F8_E4M3", {rows, cols}, numbers);
    if (scheme == "fp8_block") {
      out.add_f32(name + "_scale_inv", {down, across}, scales);
    } else if (row && !channel) {
      out.add_f32(name + "_scale", {rows, 1}, scales);
    } else if (channel) {
      Bytes bytes;
      for (const float scale : scales) {
        put(bytes, f32_to_bf16(scale));
      }
      out.add(name + "_scale", "BF16", {rows, 1}, bytes);
    } else {
      const float one = 0.03125F;
      const std::vector<int64_t> shape =
          scheme == "modelopt" ? std::vector<int64_t>{} : std::vector<int64_t>{1};
      out.add_f32(name + "_scale", shape, scales);
      const std::string module = name.substr(0, name.size() - std::string("weight").size());
      out.add_f32(module + "input_scale", shape, {&one, 1});
    }
    return values;
  }

  // Numbers that are `bits` wide in words of 32, from the lowest on: count() of them at(0), at(1), ...
  template <typename At>
  static void put_words(Bytes& out, int64_t count, int64_t bits, At at) {
    for (int64_t first = 0; first < count; first += 32 / bits) {
      uint32_t word = 0;
      for (int64_t i = 0; i < 32 / bits && first + i < count; ++i) {
        word |= static_cast<uint32_t>(at(first + i)) << (bits * i);
      }
      put(out, word);
    }
  }

  std::vector<float> quantise_groups(SafetensorsWriter& out,
                                     const std::string& name,
                                     int64_t rows,
                                     int64_t cols,
                                     const std::vector<float>& w,
                                     std::mt19937& random) const {
    WR_CHECK_EQ(cols % group, 0);
    const int64_t groups = cols / group;
    const int64_t most = (int64_t{1} << bits()) - 1;
    const bool has_zeros = scheme == "pack4_zeros" || scheme == "awq" || scheme == "gptq" ||
                           scheme == "gptq_v2" || scheme == "gptq8";
    std::vector<int32_t> group_of(static_cast<size_t>(cols));
    for (int64_t c = 0; c < cols; ++c) {
      group_of[static_cast<size_t>(c)] = static_cast<int32_t>(c / group);
    }
    if (scheme.ends_with("_order")) {
      std::shuffle(group_of.begin(), group_of.end(), random);
    }
    std::vector<float> scales(static_cast<size_t>(rows * groups));
    std::vector<int64_t> zeros(scales.size());
    for (int64_t i = 0; i < rows * groups; ++i) {
      float lowest = 0.0F;
      float highest = 0.0F;
      for (int64_t c = 0; c < cols; ++c) {
        if (group_of[static_cast<size_t>(c)] == i % groups) {
          lowest = std::min(lowest, w[static_cast<size_t>(i / groups * cols + c)]);
          highest = std::max(highest, w[static_cast<size_t>(i / groups * cols + c)]);
        }
      }
      const float width = has_zeros ? highest - lowest : 2.0F * std::max(highest, -lowest);
      const int64_t steps = scheme == "pack_most8" ? most - 1 : most;
      const float scale = f16_to_f32(f32_to_f16(width / static_cast<float>(steps)));
      scales[static_cast<size_t>(i)] = scale;
      zeros[static_cast<size_t>(i)] =
          has_zeros
              ? std::clamp(static_cast<int64_t>(std::lround(-lowest / scale)), int64_t{1}, most)
              : (most + 1) / 2;
    }
    std::vector<int64_t> q;
    std::vector<float> values;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const auto at =
          static_cast<size_t>(i / cols * groups + group_of[static_cast<size_t>(i % cols)]);
      const auto number =
          static_cast<int64_t>(std::lrint(w[static_cast<size_t>(i)] / scales[at])) + zeros[at];
      q.push_back(std::clamp<int64_t>(number, 0, most));
      values.push_back(scales[at] * static_cast<float>(q.back() - zeros[at]));
    }
    const auto q_at = [&](int64_t r, int64_t c) { return q[static_cast<size_t>(r * cols + c)]; };
    const auto zero_at = [&](int64_t r, int64_t g) {
      return zeros[static_cast<size_t>(r * groups + g)];
    };
    const int64_t per_word = 32 / bits();
    const std::string module = name.substr(0, name.size() - std::string("weight").size());
    Bytes words;
    Bytes zero_words;
    Bytes scale_bytes;
    Bytes order;
    for (const int32_t g : group_of) {
      put(order, g);
    }
    if (scheme.starts_with("pack")) {
      for (int64_t r = 0; r < rows; ++r) {
        put_words(words, cols, bits(), [&](int64_t c) { return q_at(r, c); });
      }
      for (int64_t r = 0; r < rows; r += per_word) {  // zero points are packed along columns
        for (int64_t g = 0; g < groups; ++g) {
          put_words(zero_words, per_word, bits(), [&](int64_t i) {
            return r + i < rows ? zero_at(r + i, g) : 0;
          });
        }
      }
      for (const float scale : scales) {
        put(scale_bytes, f32_to_f16(scale));
      }
      out.add(name + "_packed", "I32", {rows, (cols + per_word - 1) / per_word}, words);
      out.add(name + "_scale", "F16", {rows, groups}, scale_bytes);
      Bytes shape;
      put(shape, rows);
      put(shape, cols);
      out.add(name + "_shape", "I64", {2}, shape);
      if (has_zeros) {
        out.add(
            name + "_zero_point", "I32", {(rows + per_word - 1) / per_word, groups}, zero_words);
      }
      if (scheme == "pack4_order") {
        out.add(name + "_g_idx", "I32", {cols}, order);
      }
      return values;
    }
    constexpr std::array<int64_t, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};  // of outputs in a word
    const bool awq = scheme == "awq";
    if (awq) {
      for (int64_t c = 0; c < cols; ++c) {
        put_words(words, rows, 4, [&](int64_t i) {
          return q_at(i / 8 * 8 + kAwqOrder[static_cast<size_t>(i % 8)], c);
        });
      }
    } else {
      for (int64_t c = 0; c < cols; c += per_word) {
        for (int64_t r = 0; r < rows; ++r) {
          put_words(words, per_word, bits(), [&](int64_t i) { return q_at(r, c + i); });
        }
      }
    }
    const int64_t less = scheme == "awq" || scheme == "gptq_v2" ? 0 : 1;  // GPTQ's first version
    for (int64_t g = 0; g < groups; ++g) {
      put_words(zero_words, rows, bits(), [&](int64_t i) {
        return zero_at(awq ? i / 8 * 8 + kAwqOrder[static_cast<size_t>(i % 8)] : i, g) - less;
      });
      for (int64_t r = 0; r < rows; ++r) {
        put(scale_bytes, f32_to_f16(scales[static_cast<size_t>(r * groups + g)]));
      }
    }
    out.add(
        module + "qweight",
        "I32",
        awq ? std::vector<int64_t>{cols, rows / 8} : std::vector<int64_t>{cols / per_word, rows},
        words);
    out.add(module + "qzeros", "I32", {groups, rows / per_word}, zero_words);
    out.add(module + "scales", "F16", {groups, rows}, scale_bytes);
    if (!awq) {
      out.add(module + "g_idx", "I32", {cols}, order);
    }
    return values;
  }
};

}  // namespace warprow::test
