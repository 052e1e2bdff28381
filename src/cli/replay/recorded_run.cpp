// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/recorded_run.h"

#include "config/fields.h"
#include "files/model_files.h"
#include "kv/block_hash.h"
#include "weights/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kSampledBytes = 64;  // of each tensor

std::string absolute_if_path(const std::string& model) {
  std::error_code error;
  return std::filesystem::exists(model, error) ? std::filesystem::absolute(model, error).string()
                                               : model;
}

Json settings_json(const EngineConfig& config) {
  Json settings = Json::object();
  for_each_field([&](const Field& field) { settings[field.name] = field_text(config, field); });
  settings["model"] = absolute_if_path(config.model);
  return settings;
}

Json facts_json(const ModelFacts& facts) {
  Json groups = Json::array();
  for (const KvGroupSpec& group : facts.kv.groups) {
    groups.push_back({{"kind", static_cast<int>(group.kind)},
                      {"window", group.window},
                      {"state_pages", group.state_pages},
                      {"block_size", group.block_size}});
  }
  return {{"architecture", facts.architecture},
          {"vocab_size", facts.vocab_size},
          {"max_model_len", facts.max_model_len},
          {"max_num_seqs", facts.max_num_seqs},
          {"max_num_batched_tokens", facts.max_num_batched_tokens},
          {"max_drafts", facts.max_drafts},
          {"kv_groups", groups},
          {"num_kv_blocks", facts.kv.num_blocks},
          {"token_page_size", facts.token_pages.page_size},
          {"num_token_pages", facts.token_pages.num_pages}};
}

ModelFacts facts_of(const Json& json) {
  ModelFacts facts;
  facts.architecture = json.at("architecture");
  facts.vocab_size = json.at("vocab_size");
  facts.max_model_len = json.at("max_model_len");
  facts.max_num_seqs = json.at("max_num_seqs");
  facts.max_num_batched_tokens = json.at("max_num_batched_tokens");
  facts.max_drafts = json.at("max_drafts");
  for (const Json& one : json.at("kv_groups")) {
    KvGroupSpec& group = facts.kv.groups.emplace_back();
    group.kind = static_cast<KvKind>(one.at("kind").get<int>());
    group.window = one.at("window");
    group.state_pages = one.value("state_pages", 0);  // older recordings have no states
    group.block_size = one.at("block_size");
  }
  facts.kv.num_blocks = json.at("num_kv_blocks");
  facts.token_pages = {json.at("token_page_size"), json.at("num_token_pages")};
  return facts;
}

Result<void> read_settings(const Json& settings, EngineConfig& config) {
  for (const auto& [name, value] : settings.items()) {
    const Field* field = find_field(name);
    const auto text = value.get<std::string>();
    if (field == nullptr || (text.empty() && name == "model")) {
      continue;
    }
    if (Result<void> set = set_field(config, *field, text, "recording: " + name); !set) {
      return set;
    }
  }
  return {};
}

}  // namespace

std::string describe(const RecordedRun& run) {
  const Json json = {{"warprow", run.version},
                     {"with_ids", run.with_ids},
                     {"model_hash", fmt::format("{:016x}", run.model_hash)},
                     {"attention_backends", run.backends},
                     {"settings", settings_json(run.config)},
                     {"facts", facts_json(run.facts)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

Result<RecordedRun> read_description(const std::string& text) {
  RecordedRun run;
  try {
    const Json json = Json::parse(text);
    run.version = json.at("warprow");
    run.with_ids = json.at("with_ids");
    run.model_hash = std::stoull(json.at("model_hash").get<std::string>(), nullptr, 16);
    run.backends = json.at("attention_backends");
    run.facts = facts_of(json.at("facts"));
    if (Result<void> read = read_settings(json.at("settings"), run.config); !read) {
      return tl::unexpected(read.error());
    }
  } catch (const std::exception& error) {
    return fail(ErrorCode::kCorrupt, fmt::format("description of the recording: {}", error.what()));
  }
  return run;
}

Result<uint64_t> model_hash(const EngineConfig& config) {
  if (config.load_format == "dummy") {
    return uint64_t{0};
  }
  const Result<ModelFiles> files =
      resolve_model(config.model, CachePaths::from_environment(), WeightFiles::kRequired);
  if (!files) {
    return tl::unexpected(files.error());
  }
  const Result<Checkpoint> checkpoint = Checkpoint::open(*files);
  if (!checkpoint) {
    return tl::unexpected(checkpoint.error());
  }
  std::vector<std::string> tensors;
  for (const TensorSource& tensor : checkpoint->tensors()) {
    const std::span sample(tensor.data, std::min(tensor.bytes, kSampledBytes));
    tensors.push_back(fmt::format("{} {} {} {:016x}\n",
                                  tensor.name,
                                  static_cast<int>(tensor.type),
                                  fmt::join(tensor.shape, "x"),
                                  sip_hash_128(sample).lo));
  }
  std::ranges::sort(tensors);
  const std::string all = fmt::format("{}", fmt::join(tensors, ""));
  return sip_hash_128(std::as_bytes(std::span(all))).lo;
}

}  // namespace warprow
