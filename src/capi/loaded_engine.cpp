// SPDX-License-Identifier: Apache-2.0
#include "capi/loaded_engine.h"

#include "base/log.h"
#include "engine/hub_download.h"
#include "engine/load_engine.h"
#include "text/helper_entry.h"
#include "text/text_model.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <unistd.h>

#include "capi/settings.h"
#include <fmt/format.h>

namespace warprow {
namespace {

ApiOptions options_for(const EngineConfig& config) {
  ApiOptions options;
  options.model_names = {config.model};
  options.version = warprow_version();
  options.strict = true;
  options.trust_request_chat_template = true;  // requests are this program's own
  return options;
}

// A failed write is no reason to end a download.
void tell_user(const std::string& text) { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace

LoadedEngine::LoadedEngine(std::string_view settings, std::vector<LogitsCallback> rules)
    : owner_(getpid()), rules_(std::move(rules)) {
  EngineConfig config = value_or_throw(read_settings(settings));
  init_logging(config.log_level, config.log_format);
  if (config.worker_binary.empty()) {
    config.worker_binary = installed_binary();
  }
  if (!config.worker_binary.empty()) {
    value_or_throw(set_helper_program(config.worker_binary));
  }
  const WeightFiles weights =
      config.load_format == "dummy" ? WeightFiles::kNotRead : WeightFiles::kRequired;
  value_or_throw(ensure_model(config.model, weights, tell_user));
  LogitsRules in_order;
  std::ranges::transform(rules_, std::back_inserter(in_order), [](auto& rule) { return &rule; });
  engine_ = load_ruled_engine(config, in_order);
  options_ = options_for(config);
  served_.reset(new Served{
      .engine = *engine_,
      .watch = watch_,
      .options = options_,
      .encoder = PromptEncoder(engine_->text().tokenizer, engine_->model_facts().max_model_len),
      .names = RequestNames(*engine_, options_),
      .started = std::time(nullptr)});
}

LoadedEngine::~LoadedEngine() {
  if (is_elsewhere()) {
    [[maybe_unused]] const Engine* elsewhere = engine_.release();  // its threads are in the parent
    return;
  }
  close();
}

void LoadedEngine::close() {
  if (is_elsewhere()) {
    return;
  }
  const std::unique_lock lock(mutex_);
  engine_.reset();
  served_.reset();
}

bool LoadedEngine::is_elsewhere() const { return getpid() != owner_; }

warprow_status LoadedEngine::refuse_elsewhere() const {
  return fail_call(
      WARPROW_FORKED,
      fmt::format("the engine belongs to process {}, and this is a fork of it", owner_));
}

}  // namespace warprow
