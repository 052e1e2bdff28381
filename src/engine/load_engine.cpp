// SPDX-License-Identifier: Apache-2.0
#include "engine/load_engine.h"

#include "engine/adapters.h"
#include "executor/make_executor.h"
#include "files/model_files.h"
#include "text/byte_text.h"
#include "text/text_model.h"

#include <memory>
#include <thread>
#include <utility>

namespace warprow {
namespace {

std::unique_ptr<Engine> load(const EngineConfig& config,
                             const WrapExecutor& wrap,
                             const LogitsRules& rules) {
  const bool dummy = config.load_format == "dummy";
  const std::vector<LoadedAdapter> adapters =
      value_or_throw(parse_lora_modules(config.lora_modules));
  const ModelFiles files =
      value_or_throw(resolve_model(config.model,
                                   CachePaths::from_environment(),
                                   dummy ? WeightFiles::kNotRead : WeightFiles::kRequired));
  Result<std::unique_ptr<TextModel>> text = fail(ErrorCode::kInternal, "not loaded yet");
  std::unique_ptr<Executor> executor;
  {
    const std::jthread reader([&] {
      text = load_text_model(files);
      if (dummy && !text && text.error().code == ErrorCode::kNotFound) {
        text = make_byte_text();
      }
    });
    executor = make_executor(config, rules);
  }
  if (wrap) {
    executor = wrap(std::move(executor));
  }
  std::unique_ptr<Engine> engine =
      make_engine(config, value_or_throw(std::move(text)), std::move(executor));
  for (const LoadedAdapter& adapter : adapters) {
    value_or_throw(engine->load_adapter(adapter.name, adapter.path));
  }
  return engine;
}

}  // namespace

std::unique_ptr<Engine> load_engine(const EngineConfig& config, const WrapExecutor& wrap) {
  return load(config, wrap, {});
}

std::unique_ptr<Engine> load_ruled_engine(const EngineConfig& config, const LogitsRules& rules) {
  return load(config, {}, rules);
}

}  // namespace warprow
