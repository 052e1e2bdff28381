// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/embed_run.h"

#include "cli/commands/request_file.h"
#include "cli/commands/single_run.h"
#include "cli/note.h"
#include "cli/progress_bar.h"
#include "cli/run_summary.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <unistd.h>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr size_t kLeastInputsAhead = 256;
constexpr size_t kInputsAheadPerSeq = 4;

// A line's text or token ids: see run_embed's help.
Result<std::variant<std::string, std::vector<TokenId>>> read_line(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t");
  if (line[begin] != '{' && line[begin] != '"') {
    return line;
  }
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_string()) {
    return json.get<std::string>();
  }
  if (json.is_object() && json.contains("text") && json["text"].is_string()) {
    return json["text"].get<std::string>();
  }
  const auto is_id = [](const nlohmann::json& id) {
    return id.is_number_integer() && id >= 0 && id <= std::numeric_limits<TokenId>::max();
  };
  if (json.is_object() && json.contains("token_ids") && json["token_ids"].is_array() &&
      std::ranges::all_of(json["token_ids"], is_id)) {
    return json["token_ids"].get<std::vector<TokenId>>();
  }
  return fail(ErrorCode::kInvalidArgument,
              "a line of JSON must be a text, or an object with `text` or a list `token_ids`");
}

}  // namespace

EmbedRun::EmbedRun(Engine& engine,
                   UpdateQueue& updates,
                   const PoolingRequest& defaults,
                   const VectorFormat& format,
                   Output& out)
    : engine_(engine),
      updates_(updates),
      defaults_(defaults),
      format_(format),
      out_(out),
      look_ahead_(std::max(kLeastInputsAhead,
                           kInputsAheadPerSeq * static_cast<size_t>(std::max(
                                                    0, engine.model_facts().max_num_seqs)))) {}

Result<ExitCode> EmbedRun::run(std::istream& lines, int64_t total) {
  const auto start = std::chrono::steady_clock::now();
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  out_.write(format_.head(0));
  {
    ProgressBar bar(total, on_terminal && !out_.is_terminal());
    while (updates_.signal() == 0 && !out_.closed()) {
      read_ahead(lines);
      write_finished();
      if (window_.empty() && end_of_input_) {
        break;
      }
      if (!live_.empty()) {
        take_update();
      }
      bar.update(first_ + static_cast<int64_t>(window_.size() - live_.size()), num_tokens_);
    }
    for (const auto& [id, line] : live_) {
      engine_.abort(id);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (num_failed_ > 0) {
    note("warprow: {} of {} texts failed\n", num_failed_, first_);
  }
  if (on_terminal) {
    note("{} texts, {}\n", first_, speed_text(num_tokens_, took.count()));
  }
  if (Result<void> written = out_.status(); !written) {
    return tl::unexpected(written.error());
  }
  if (updates_.signal() != 0) {
    return exit_code_of_signal(updates_);
  }
  return num_failed_ == 0 ? ExitCode::kOk : ExitCode::kRequestFailed;
}

void EmbedRun::read_ahead(std::istream& lines) {
  std::string text;
  while (!end_of_input_ && window_.size() < look_ahead_ && updates_.signal() == 0) {
    if (!std::getline(lines, text)) {
      end_of_input_ = true;
      return;
    }
    if (!is_blank(text)) {
      start_line(text);
    }
  }
}

void EmbedRun::start_line(const std::string& text) {
  const int64_t number = first_ + static_cast<int64_t>(window_.size());
  window_.emplace_back();
  PoolingRequest request = defaults_;
  Result<ValidRequest> valid = read_line(text).and_then([&](auto prompt) {
    request.prompt = std::move(prompt);
    return engine_.validate_pooling(request);
  });
  if (!valid) {
    refuse(number, valid.error());
    return;
  }
  live_.emplace(engine_.submit(*std::move(valid), updates_.callback()), number);
}

void EmbedRun::refuse(int64_t line, const Error& error) {
  window_[static_cast<size_t>(line - first_)] = format_.failure(line, error);
  ++num_failed_;
}

void EmbedRun::take_update() {
  const std::optional<RequestUpdate> update = updates_.take();
  const auto found = update ? live_.find(update->id) : live_.end();
  if (found == live_.end() || update->finish_reason == FinishReason::kNone) {
    return;
  }
  const int64_t number = found->second;
  live_.erase(found);
  num_tokens_ += update->num_prompt_tokens;
  if (update->finish_reason != FinishReason::kStop) {
    refuse(number, {ErrorCode::kInternal, update->error});
    return;
  }
  window_[static_cast<size_t>(number - first_)] = format_.result(number, *update);
}

void EmbedRun::write_finished() {
  while (!window_.empty() && !window_.front().empty()) {
    out_.write(window_.front());
    window_.pop_front();
    ++first_;
  }
}

}  // namespace warprow
