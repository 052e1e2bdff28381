// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "models/decoder_spec.h"
#include "models/rope_metadata.h"
#include "weights/checkpoint.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// One view of a model's description for both containers: config.json keys, or GGUF keys under the architecture's
// prefix. A getter takes both names and uses the one that applies. An empty name means "not in this container" and
// yields the fallback.
//
// Thread: const.
// Invariant: the checkpoint outlives it.
class ModelMetadata {
 public:
  // Errors: no architecture named.
  static Result<ModelMetadata> open(const Checkpoint& checkpoint);

  ModelMetadata(ModelMetadata&&) noexcept;
  ModelMetadata& operator=(ModelMetadata&&) noexcept;
  ~ModelMetadata();

  // From here on describes the text model of a larger one, from config.json's text_config. defaults: a JSON object with
  // the values of keys that it leaves out, as published files do.
  // Errors: no text_config.
  Result<void> enter_text_config(const char* defaults);
  // From here on describes the object of config.json with this key. Errors: there is none.
  Result<void> enter_config(const char* key, const char* defaults = "{}");
  // What the names of the decoder's tensors begin with: "model.", or where a larger model has its text model.
  [[nodiscard]] const std::string& weight_prefix() const { return weight_prefix_; }

  [[nodiscard]] bool is_gguf() const { return gguf_ != nullptr; }
  // config.json: architectures[0]; GGUF: general.architecture.
  [[nodiscard]] const std::string& architecture() const { return architecture_; }
  [[nodiscard]] const Checkpoint& checkpoint() const { return *checkpoint_; }

  // A required positive integer.
  [[nodiscard]] Result<int32_t> require_count(const char* json_key, const char* gguf_key) const;
  [[nodiscard]] Result<int32_t> count_or(const char* json_key,
                                         const char* gguf_key,
                                         int32_t fallback) const;
  // The same for a number from 0 on.
  [[nodiscard]] Result<int32_t> number_or(const char* json_key,
                                          const char* gguf_key,
                                          int32_t fallback) const;
  [[nodiscard]] Result<float> float_or(const char* json_key,
                                       const char* gguf_key,
                                       float fallback) const;
  [[nodiscard]] Result<bool> bool_or(const char* json_key,
                                     bool fallback) const;  // config.json only
  [[nodiscard]] Result<bool> flag_or(const char* json_key,
                                     const char* gguf_key,
                                     bool fallback) const;
  [[nodiscard]] Result<std::string> string_or(const char* json_key,
                                              const char* gguf_key,
                                              std::string fallback) const;
  // config.json `layer_types`; empty when absent.
  [[nodiscard]] Result<std::vector<std::string>> layer_types() const;

  // A list of config.json of numbers from 0 on; empty when absent.
  [[nodiscard]] Result<std::vector<int32_t>> indices(const char* json_key) const;

  // A count of one layer, if config.json's per_layer_config has it (transformers 5).
  [[nodiscard]] Result<int32_t> layer_count_or(int32_t layer,
                                               const char* key,
                                               int32_t fallback) const;
  // Errors: per_layer_config is not an object of objects, or has another key of a layer than these.
  [[nodiscard]] Result<void> check_layer_keys(std::initializer_list<std::string_view> known) const;

  // The rope of one type of layer, if config.json's rope_parameters distinguish types (transformers 5); else
  // nullopt. `rope` supplies the fields that are not read.
  [[nodiscard]] Result<std::optional<RopeSpec>> rope_of(const char* layer_type,
                                                        RopeSpec rope,
                                                        int32_t head_dim) const;
  // Whether config.json has a value for it.
  [[nodiscard]] bool has_json(const char* key) const;
  // The same with null for a value.
  [[nodiscard]] bool names_json(const char* key) const;

  // Fills the fields that every decoder family has, rope and weight names included, and checks that
  // they agree.
  [[nodiscard]] Result<DecoderSpec> common_spec() const;
  // The same without vocabulary and head, which a model need not have.
  [[nodiscard]] Result<DecoderSpec> layers_spec() const;

 private:
  ModelMetadata();
  [[nodiscard]] Result<Activation> read_activation() const;
  [[nodiscard]] Result<RopeSpec> rope_spec(int32_t head_dim) const;
  [[nodiscard]] Result<RopeContext> rope_context(int32_t head_dim) const;
  [[nodiscard]] Result<RopeSpec> json_rope(RopeSpec rope, int32_t head_dim) const;
  [[nodiscard]] Result<RopeSpec> gguf_rope(RopeSpec rope) const;
  [[nodiscard]] std::string gguf_name(const char* key) const;

  const Checkpoint* checkpoint_ = nullptr;
  const GgufFile* gguf_ = nullptr;
  const nlohmann::json* json_ = nullptr;
  std::unique_ptr<nlohmann::json> text_;  // enter_config: what json_ points to
  std::string architecture_;
  std::string weight_prefix_ = "model.";
};

}  // namespace warprow
