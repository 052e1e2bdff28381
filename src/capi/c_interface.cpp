// SPDX-License-Identifier: Apache-2.0
// The functions of include/warprow.h: handles and C types in front of the room's classes.
#include "base/dtype.h"
#include "engine/prompt_embeds.h"
#include "text/text_model.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capi/loaded_engine.h"
#include "capi/logits_callback.h"
#include "capi/output_data.h"
#include "capi/request_queue.h"
#include "capi/status.h"
#include "warprow.h"
#include <nlohmann/json.hpp>

struct warprow_engine {
  std::shared_ptr<warprow::LoadedEngine> loaded;
};
struct warprow_logits_rules {
  std::vector<warprow::LogitsCallback> rules;
};
struct warprow_queue {
  warprow::RequestQueue requests;
};

namespace warprow {
namespace {

// Memory that the caller frees with warprow_free.
void* copy_out(const void* data, size_t bytes, size_t extra_zeros) {
  void* copy = std::calloc(bytes + extra_zeros + 1, 1);
  if (copy == nullptr) {
    throw std::bad_alloc();
  }
  if (bytes > 0) {
    std::memcpy(copy, data, bytes);
  }
  return copy;
}

warprow_status give_text(const std::string& text, char** out, size_t* len = nullptr) {
  *out = static_cast<char*>(copy_out(text.data(), text.size(), 1));
  if (len != nullptr) {
    *len = text.size();
  }
  return WARPROW_OK;
}

warprow_status status_from(const Result<void>& result) {
  return result ? warprow_status{WARPROW_OK} : fail_call(result.error());
}
template <typename T>
warprow_status status_from(const Result<T>& result) {
  return result ? warprow_status{WARPROW_OK} : fail_call(result.error());
}

template <typename... Pointers>
bool any_null(const Pointers*... pointers) {
  return ((pointers == nullptr) || ...);
}

warprow_status null_argument() {
  return fail_call(WARPROW_INVALID_ARGUMENT, "a null pointer in place of a value");
}

std::string info_json(const Served& served) {
  const ModelFacts& facts = served.engine.model_facts();
  const TextModel& text = served.engine.text();
  nlohmann::ordered_json info;
  info["model"] = served.options.model_names.front();
  info["architecture"] = facts.architecture;
  info["vocab_size"] = facts.vocab_size;
  info["bos_token_id"] = text.bos ? nlohmann::ordered_json(*text.bos) : nullptr;
  info["eos_token_ids"] = text.eos;
  info["max_model_len"] = facts.max_model_len;
  info["max_num_seqs"] = facts.max_num_seqs;
  info["max_num_batched_tokens"] = facts.max_num_batched_tokens;
  info["runner"] = facts.pooling.pools() ? "pooling" : "generate";
  if (facts.pooling.pools()) {
    info["pooling_task"] = facts.pooling.task == PoolingTask::kEmbed ? "embed" : "classify";
    info["pooled_width"] = facts.pooling.width;
    info["labels"] = nlohmann::ordered_json::array();
    for (const PoolingLabel& label : facts.pooling.labels) {
      info["labels"].push_back(label.name);
    }
  }
  return info.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string adapters_json(const std::vector<LoadedAdapter>& adapters) {
  auto list = nlohmann::ordered_json::array();
  for (const LoadedAdapter& adapter : adapters) {
    list.push_back({{"name", adapter.name}, {"path", adapter.path}});
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace
}  // namespace warprow

using namespace warprow;  // NOLINT(google-build-using-namespace): this file is the C interface

extern "C" {

uint32_t warprow_abi_version(void) { return WARPROW_ABI_VERSION; }

const char* warprow_version(void) { return WARPROW_VERSION; }

const char* warprow_last_error(void) { return last_error(); }

void warprow_free(void* memory) { std::free(memory); }

warprow_status warprow_engine_create(const char* settings_json, warprow_engine** engine) {
  return guarded([&] {
    if (any_null(settings_json, engine)) {
      return null_argument();
    }
    *engine = new warprow_engine{std::make_shared<LoadedEngine>(settings_json)};
    return warprow_status{WARPROW_OK};
  });
}

warprow_status warprow_logits_rules_create(warprow_logits_rules** rules) {
  return guarded([&] {
    if (any_null(rules)) {
      return null_argument();
    }
    *rules = new warprow_logits_rules;
    return warprow_status{WARPROW_OK};
  });
}

warprow_status warprow_logits_rules_add(warprow_logits_rules* rules,
                                        warprow_logits_rule rule,
                                        void* user,
                                        int32_t changes_argmax) {
  return guarded([&] {
    if (any_null(rules) || rule == nullptr) {
      return null_argument();
    }
    rules->rules.emplace_back(rule, user, changes_argmax != 0);
    return warprow_status{WARPROW_OK};
  });
}

void warprow_logits_rules_destroy(warprow_logits_rules* rules) { delete rules; }

warprow_status warprow_engine_create_with_rules(const char* settings_json,
                                                const warprow_logits_rules* rules,
                                                warprow_engine** engine) {
  return guarded([&] {
    if (any_null(settings_json, rules, engine)) {
      return null_argument();
    }
    *engine = new warprow_engine{std::make_shared<LoadedEngine>(settings_json, rules->rules)};
    return warprow_status{WARPROW_OK};
  });
}

void warprow_engine_close(warprow_engine* engine) {
  (void)guarded([&] {
    if (engine != nullptr) {
      engine->loaded->close();
    }
    return warprow_status{WARPROW_OK};
  });
}

void warprow_engine_destroy(warprow_engine* engine) {
  (void)guarded([&] {
    if (engine != nullptr && !engine->loaded->is_elsewhere()) {
      engine->loaded->close();
      delete engine;
    }
    return warprow_status{WARPROW_OK};
  });
}

warprow_status warprow_engine_info(warprow_engine* engine, char** json) {
  return guarded([&] {
    if (any_null(engine, json)) {
      return null_argument();
    }
    return engine->loaded->call(
        [&](const Served& served) { return give_text(info_json(served), json); });
  });
}

warprow_status warprow_engine_state(warprow_engine* engine, char** json) {
  return guarded([&] {
    if (any_null(engine, json)) {
      return null_argument();
    }
    return engine->loaded->call([&](Served& served) {
      const ApiOptions& options = served.options;
      return give_text(engine_state_json(served.engine,
                                         served.watch,
                                         {options.model_names.front(), options.version},
                                         options.stall_seconds),
                       json);
    });
  });
}

warprow_status warprow_engine_sleep(warprow_engine* engine, int32_t level) {
  return guarded([&] {
    if (any_null(engine)) {
      return null_argument();
    }
    return engine->loaded->call(
        [&](Served& served) { return status_from(served.engine.sleep(level)); });
  });
}

warprow_status warprow_engine_wake_up(warprow_engine* engine, const char* tag) {
  return guarded([&] {
    if (any_null(engine)) {
      return null_argument();
    }
    return engine->loaded->call([&](Served& served) {
      const std::vector<std::string> tags =
          tag == nullptr ? std::vector<std::string>() : std::vector<std::string>{tag};
      return status_from(served.engine.wake_up(tags));
    });
  });
}

warprow_status warprow_engine_reset_prefix_cache(warprow_engine* engine) {
  return guarded([&] {
    if (any_null(engine)) {
      return null_argument();
    }
    return engine->loaded->call(
        [&](Served& served) { return status_from(served.engine.reset_prefix_cache()); });
  });
}

warprow_status warprow_engine_pause(warprow_engine* engine, int32_t mode) {
  return guarded([&] {
    if (any_null(engine)) {
      return null_argument();
    }
    constexpr Engine::PauseMode kModes[] = {
        Engine::PauseMode::kAbort, Engine::PauseMode::kKeep, Engine::PauseMode::kWait};
    if (mode < WARPROW_PAUSE_ABORT || mode > WARPROW_PAUSE_WAIT) {
      return fail_call(WARPROW_INVALID_ARGUMENT,
                       "mode: " + std::to_string(mode) + " is none of WARPROW_PAUSE_ABORT, ...");
    }
    return engine->loaded->call(
        [&](Served& served) { return status_from(served.engine.pause(kModes[mode])); });
  });
}

warprow_status warprow_engine_resume(warprow_engine* engine) {
  return guarded([&] {
    if (any_null(engine)) {
      return null_argument();
    }
    return engine->loaded->call(
        [&](Served& served) { return status_from(served.engine.resume()); });
  });
}

warprow_status warprow_engine_update_weights(warprow_engine* engine, const char* model) {
  return guarded([&] {
    if (any_null(engine, model)) {
      return null_argument();
    }
    return engine->loaded->call(
        [&](Served& served) { return status_from(served.engine.update_weights(model)); });
  });
}

warprow_status warprow_engine_load_adapter(warprow_engine* engine,
                                           const char* name,
                                           const char* path) {
  return guarded([&] {
    if (any_null(engine, name, path)) {
      return null_argument();
    }
    return engine->loaded->call([&](Served& served) {
      if (served.names.is_base(name)) {
        return fail_call(WARPROW_INVALID_ARGUMENT,
                         "name: '" + std::string(name) + "' is the model's name");
      }
      return status_from(served.engine.load_adapter(name, path));
    });
  });
}

warprow_status warprow_engine_unload_adapter(warprow_engine* engine, const char* name) {
  return guarded([&] {
    if (any_null(engine, name)) {
      return null_argument();
    }
    return engine->loaded->call(
        [&](Served& served) { return status_from(served.engine.unload_adapter(name)); });
  });
}

warprow_status warprow_engine_adapters(warprow_engine* engine, char** json) {
  return guarded([&] {
    if (any_null(engine, json)) {
      return null_argument();
    }
    return engine->loaded->call([&](const Served& served) {
      return give_text(adapters_json(served.engine.adapters()), json);
    });
  });
}

warprow_status warprow_tokenize(warprow_engine* engine,
                                const char* text,
                                size_t text_len,
                                int32_t add_special,
                                int32_t** tokens,
                                size_t* num_tokens) {
  return guarded([&] {
    if (any_null(engine, text, tokens, num_tokens)) {
      return null_argument();
    }
    return engine->loaded->call([&](const Served& served) {
      const std::vector<TokenId> ids =
          served.engine.text().tokenizer.encode({text, text_len}, add_special != 0);
      *tokens = static_cast<int32_t*>(copy_out(ids.data(), ids.size() * sizeof(int32_t), 0));
      *num_tokens = ids.size();
      return warprow_status{WARPROW_OK};
    });
  });
}

warprow_status warprow_detokenize(warprow_engine* engine,
                                  const int32_t* tokens,
                                  size_t num_tokens,
                                  int32_t skip_special,
                                  char** text,
                                  size_t* text_len) {
  return guarded([&] {
    if (any_null(engine, text, text_len) || (tokens == nullptr && num_tokens > 0)) {
      return null_argument();
    }
    return engine->loaded->call([&](const Served& served) {
      const Tokenizer& tokenizer = served.engine.text().tokenizer;
      // A model may have more logits than its tokenizer has tokens; the others have no text.
      const int32_t num_ids =
          std::max(tokenizer.vocab_size(), served.engine.model_facts().vocab_size);
      std::vector<TokenId> ids;
      ids.reserve(num_tokens);
      for (const TokenId id : std::span<const TokenId>(tokens, num_tokens)) {
        if (id < 0 || id >= num_ids) {
          return fail_call(WARPROW_INVALID_ARGUMENT,
                           "tokens: " + std::to_string(id) + " is no id of the vocabulary of " +
                               std::to_string(num_ids));
        }
        if (id < tokenizer.vocab_size()) {
          ids.push_back(id);
        }
      }
      return give_text(tokenizer.decode(ids, skip_special != 0), text, text_len);
    });
  });
}

warprow_status warprow_render_chat(warprow_engine* engine,
                                   const char* request_json,
                                   char** text,
                                   size_t* text_len) {
  return guarded([&] {
    if (any_null(engine, request_json, text, text_len)) {
      return null_argument();
    }
    return engine->loaded->call([&](Served& served) {
      std::string rendered;
      const warprow_status status = render_body(served, request_json, rendered);
      return status == WARPROW_OK ? give_text(rendered, text, text_len) : status;
    });
  });
}

warprow_status warprow_queue_create(warprow_engine* engine, warprow_queue** queue) {
  return guarded([&] {
    if (any_null(engine, queue)) {
      return null_argument();
    }
    return engine->loaded->call([&](const Served& /*served*/) {
      *queue = new warprow_queue{RequestQueue(engine->loaded)};
      return warprow_status{WARPROW_OK};
    });
  });
}

void warprow_queue_destroy(warprow_queue* queue) {
  (void)guarded([&] {
    delete queue;
    return warprow_status{WARPROW_OK};
  });
}

warprow_status warprow_queue_submit(warprow_queue* queue,
                                    const char* request_json,
                                    uint64_t* request) {
  return guarded([&] {
    if (any_null(queue, request_json, request)) {
      return null_argument();
    }
    return queue->requests.submit(request_json, nullptr, *request);
  });
}

warprow_status warprow_queue_submit_embeds(warprow_queue* queue,
                                           const char* request_json,
                                           const void* vectors,
                                           int32_t dtype,
                                           size_t num_vectors,
                                           size_t width,
                                           uint64_t* request) {
  return guarded([&] {
    if (any_null(queue, request_json, request) || vectors == nullptr) {
      return null_argument();
    }
    constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
    if (dtype < WARPROW_FLOAT32 || dtype > WARPROW_BFLOAT16) {
      return fail_call(WARPROW_INVALID_ARGUMENT,
                       "dtype: " + std::to_string(dtype) + " is none of WARPROW_FLOAT32, ...");
    }
    constexpr size_t kMost = INT32_MAX;
    if (num_vectors < 1 || width < 1 || num_vectors > kMost || width > kMost) {
      return fail_call(WARPROW_INVALID_ARGUMENT,
                       "prompt_embeds: " + std::to_string(num_vectors) + " vectors of " +
                           std::to_string(width) + " numbers, must be 1 or more of each");
    }
    const DType type = kTypes[dtype];
    const std::span bytes(static_cast<const std::byte*>(vectors),
                          num_vectors * width * dtype_bytes(type));
    return queue->requests.submit(
        request_json, prompt_embeds(bytes, type, static_cast<int32_t>(width)), *request);
  });
}

warprow_status warprow_queue_cancel(warprow_queue* queue, uint64_t request) {
  return guarded(
      [&] { return any_null(queue) ? null_argument() : queue->requests.cancel(request); });
}

void warprow_queue_close(warprow_queue* queue) {
  (void)guarded([&] {
    if (queue != nullptr) {
      queue->requests.close();
    }
    return warprow_status{WARPROW_OK};
  });
}

warprow_status warprow_queue_wait(warprow_queue* queue,
                                  int64_t timeout_ms,
                                  warprow_output** output) {
  return guarded([&] {
    return any_null(queue, output) ? null_argument() : queue->requests.wait(timeout_ms, *output);
  });
}

void warprow_output_free(warprow_output* output) {
  if (output != nullptr) {
    delete OutputData::of(output);
  }
}

}  // extern "C"
