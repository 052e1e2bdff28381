// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/error.h"
#include "files/safetensors.h"
#include "tests/support/random_model.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow::test {

// A LoRA adapter of a RandomModel, as PEFT saves one. It changes answers but not the size of values.
struct RandomAdapter {
  int32_t r = 8;
  double alpha = 16;
  bool rslora = false;
  std::vector<std::string> targets{
      "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  nlohmann::json more = nlohmann::json::object();  // of adapter_config.json
  uint32_t seed = 1;
  // Ranks and alphas of modules whose names end so, beside what `more` says of them.
  std::vector<std::pair<std::string, int32_t>> ranks{};
  std::vector<std::pair<std::string, double>> alphas{};

  struct Pair {
    std::string module;  // model.layers.0.self_attn.q_proj
    int64_t rows = 0;
    int64_t cols = 0;
    int32_t rank = 0;
    double scale = 1;
    std::vector<float> a;  // [rank, cols]
    std::vector<float> b;  // [rows, rank]
  };

  [[nodiscard]] std::vector<Pair> pairs(const RandomModel& model) const {
    std::mt19937 random(seed);
    std::vector<Pair> pairs;
    for (int32_t layer = 0; layer < model.num_layers; ++layer) {
      for (const std::string& target : targets) {
        Pair pair;
        const bool attention =
            target[0] == 'q' || target[0] == 'k' || target[0] == 'v' || target[0] == 'o';
        pair.module = "model.layers." + std::to_string(layer) +
                      (attention ? ".self_attn." : ".mlp.") + target;
        const auto [rows, cols] = size_of(model, target);
        pair.rows = rows;
        pair.cols = cols;
        pair.rank = value_of(ranks, pair.module, r);
        const double divisor = rslora ? std::sqrt(pair.rank) : pair.rank;
        pair.scale = value_of(alphas, pair.module, alpha) / divisor;
        pair.a = draw(random, pair.rank * cols, 1.0 / std::sqrt(static_cast<double>(cols)));
        pair.b = draw(random, rows * pair.rank, 0.5 / (pair.scale * std::sqrt(pair.rank)));
        pairs.push_back(std::move(pair));
      }
    }
    return pairs;
  }

  // Writes the adapter into dir/name and returns that path.
  std::string write(const TempDir& dir, const std::string& name, const RandomModel& model) const {
    nlohmann::json config = {{"peft_type", "LORA"},
                             {"task_type", "CAUSAL_LM"},
                             {"r", r},
                             {"lora_alpha", alpha},
                             {"use_rslora", rslora},
                             {"target_modules", targets},
                             {"bias", "none"}};
    config.update(more);
    dir.write(name + "/adapter_config.json", config.dump());
    SafetensorsWriter writer;
    for (const Pair& pair : pairs(model)) {
      const std::string at = "base_model.model." + pair.module;
      writer.add_f32(at + ".lora_A.weight", {pair.rank, pair.cols}, pair.a);
      writer.add_f32(at + ".lora_B.weight", {pair.rows, pair.rank}, pair.b);
    }
    dir.write(name + "/adapter_model.safetensors", writer.bytes());
    return (dir.path() / name).string();
  }

  // Writes the model in float32 with W + scale B A into dir/name. base: where it was written, in bf16 or float32.
  std::string write_merged(const TempDir& dir,
                           const std::string& name,
                           const RandomModel& model,
                           const std::string& base) const {
    const SafetensorsFile file = value_or_throw(SafetensorsFile::open(base + "/model.safetensors"));
    const std::vector<Pair> all = pairs(model);
    SafetensorsWriter writer;
    for (const SafetensorsTensor& tensor : file.tensors()) {
      std::vector<float> values = floats_of(file, tensor);
      for (const Pair& pair : all) {
        if (tensor.name == pair.module + ".weight") {
          add(pair, values);
        }
      }
      writer.add_f32(tensor.name, tensor.shape, values);
    }
    dir.write(name + "/model.safetensors", writer.bytes());
    std::filesystem::copy_file(base + "/config.json", dir.path() / name / "config.json");
    return (dir.path() / name).string();
  }

 private:
  static std::pair<int64_t, int64_t> size_of(const RandomModel& model, const std::string& target) {
    const int64_t q = int64_t{model.num_heads} * model.head_dim;
    const int64_t kv = int64_t{model.num_kv_heads} * model.head_dim;
    if (target == "o_proj") {
      return {model.hidden_size, q};
    }
    if (target == "down_proj") {
      return {model.hidden_size, model.intermediate_size};
    }
    const int64_t rows = target == "q_proj" ? q : target.size() == 6 ? kv : model.intermediate_size;
    return {target == "up_proj" ? model.intermediate_size : rows, model.hidden_size};
  }

  template <typename T>
  static T value_of(const std::vector<std::pair<std::string, T>>& values,
                    const std::string& module,
                    T fallback) {
    for (const auto& [end, value] : values) {
      if (module.ends_with(end)) {
        return value;
      }
    }
    return fallback;
  }

  static std::vector<float> draw(std::mt19937& random, int64_t count, double deviation) {
    std::normal_distribution<float> normal(0.0F, static_cast<float>(deviation));
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) {
      v = normal(random);
    }
    return values;
  }

  static std::vector<float> floats_of(const SafetensorsFile& file,
                                      const SafetensorsTensor& tensor) {
    const auto bytes = file.tensor_bytes(tensor);
    if (tensor.dtype == SafetensorsDtype::kF32) {
      std::vector<float> values(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    }
    std::vector<float> values(bytes.size() / sizeof(uint16_t));
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t half = 0;
      std::memcpy(&half, bytes.data() + i * sizeof(half), sizeof(half));
      values[i] = bf16_to_f32(half);
    }
    return values;
  }

  static void add(const Pair& pair, std::vector<float>& weight) {
    for (int64_t row = 0; row < pair.rows; ++row) {
      for (int64_t col = 0; col < pair.cols; ++col) {
        double sum = 0;
        for (int64_t i = 0; i < pair.rank; ++i) {
          sum += static_cast<double>(pair.b[static_cast<size_t>(row * pair.rank + i)]) *
                 pair.a[static_cast<size_t>(i * pair.cols + col)];
        }
        weight[static_cast<size_t>(row * pair.cols + col)] += static_cast<float>(pair.scale * sum);
      }
    }
  }
};

}  // namespace warprow::test
