// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/replay_executor.h"

#include "cli/note.h"
#include "config/fields.h"
#include "engine/hub_download.h"
#include "executor/make_executor.h"
#include "kv/kv_math.h"
#include "worker/kv_sizing.h"
#include "worker/model_plan.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Settings of this machine and this run, which are never taken from a recording.
bool is_local(std::string_view field) {
  constexpr std::string_view kLocal[] = {"threads", "pin-threads", "log-level", "log-format"};
  return std::ranges::find(kLocal, field) != std::end(kLocal);
}

// The settings of the recorded run, with its sizes, under those that the user gives.
Result<EngineConfig> settings_of(const RecordedRun& run, const LoadedConfig& given) {
  EngineConfig base = run.config;
  base.max_model_len = run.facts.max_model_len;
  base.max_num_seqs = run.facts.max_num_seqs;
  base.max_num_batched_tokens = run.facts.max_num_batched_tokens;
  EngineConfig config = given.config;
  Result<void> set;
  for_each_field([&](const Field& field) {
    if (set && given.origin(field.name) == Origin::kDefault && !is_local(field.name)) {
      set = set_field(config, field, field_text(base, field), "recording");
    }
  });
  if (!set) {
    return tl::unexpected(set.error());
  }
  return config;
}

// Sizes the cache for the KV blocks that the steps name, and for the longest request, which every engine must hold. It
// needs no more blocks than were recorded, and unused blocks of a large cache need not fit here. A block may have another
// size in bytes here.
Result<void> size_cache(const RecordedRun& run, const UsedIds& used, EngineConfig& config) {
  EngineConfig any_size = config;
  any_size.max_model_len = 0;
  any_size.kv_cache_memory_bytes = 0;
  const Result<ModelPlan> plan = plan_model(any_size, this_machine(any_size.device));
  if (!plan) {
    return tl::unexpected(plan.error());
  }
  const int32_t longest = run.facts.max_model_len;
  const int64_t of_longest = 1 + blocks_of_request(plan->kv.groups, longest, longest);
  const int64_t num_blocks =
      std::min<int64_t>(run.facts.kv.num_blocks, std::max(used.num_blocks, of_longest));
  config.kv_cache_memory_bytes = largest_cache(*plan).block_bytes() * num_blocks;
  return {};
}

struct Size {
  std::string_view what;
  int64_t recorded = 0;
  int64_t here = 0;
  bool may_exceed = false;  // a larger value than in the recording is allowed
};

// What the recorded steps need of an executor.
std::vector<Size> sizes_of_replay(const ModelFacts& recorded,
                                  const UsedIds& used,
                                  const ModelFacts& here) {
  std::vector<Size> sizes = {
      {"tokens in the vocabulary", recorded.vocab_size, here.vocab_size},
      {"tokens in a page", recorded.token_pages.page_size, here.token_pages.page_size},
      {"token pages", used.num_token_pages, here.token_pages.num_pages, true},
      {"KV blocks", used.num_blocks, here.kv.num_blocks, true},
      {"rows", recorded.max_num_seqs, here.max_num_seqs, true},
      {"tokens in a step", recorded.max_num_batched_tokens, here.max_num_batched_tokens, true},
      {"tokens in a row", recorded.max_model_len, here.max_model_len, true},
      {"drafts", recorded.max_drafts, here.max_drafts, true},
      {"groups of KV layers", std::ssize(recorded.kv.groups), std::ssize(here.kv.groups)},
  };
  for (size_t i = 0; i < std::min(recorded.kv.groups.size(), here.kv.groups.size()); ++i) {
    const KvGroupSpec& was = recorded.kv.groups[i];
    const KvGroupSpec& is = here.kv.groups[i];
    sizes.push_back({"tokens in a KV block", was.block_size, is.block_size});
    sizes.push_back({"tokens in a window", was.window, is.window});
  }
  return sizes;
}

Result<void> check_sizes(const ModelFacts& recorded, const UsedIds& used, const ModelFacts& here) {
  for (const Size& size : sizes_of_replay(recorded, used, here)) {
    if (size.here < size.recorded || (size.here > size.recorded && !size.may_exceed)) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{} {} here, {} in the recording", size.here, size.what, size.recorded));
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Executor>> make_replay_executor(const RecordedRun& run,
                                                       const UsedIds& used,
                                                       const LoadedConfig& given) {
  Result<EngineConfig> config = settings_of(run, given);
  if (!config) {
    return tl::unexpected(config.error());
  }
  const WeightFiles weights =
      config->load_format == "dummy" ? WeightFiles::kNotRead : WeightFiles::kRequired;
  if (Result<void> there = ensure_model(config->model, weights, note_text); !there) {
    return tl::unexpected(there.error());
  }
  if (given.origin("kv-cache-memory-bytes") == Origin::kDefault) {
    if (Result<void> sized = size_cache(run, used, *config); !sized) {
      return tl::unexpected(sized.error());
    }
  }
  const Result<uint64_t> hash = model_hash(*config);
  if (!hash) {
    return tl::unexpected(hash.error());
  }
  if (*hash != run.model_hash) {
    note("the weights of {} are not those of the recording\n", config->model);
  }
  std::unique_ptr<Executor> executor = make_executor(*config);
  executor->enter_thread();
  if (Result<void> fits = check_sizes(run.facts, used, executor->model_facts()); !fits) {
    return tl::unexpected(fits.error());
  }
  const std::string backends = executor->call(ReadAttentionBackends{}).get().front();
  if (backends != run.backends) {
    note("attention by {}, in the recording by {}\n", backends, run.backends);
  }
  return executor;
}

}  // namespace warprow
