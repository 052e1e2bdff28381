// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/writers.h"
#include "server/response/answer_json.h"
#include "server/response/logprobs_json.h"

#include <optional>
#include <utility>
#include <vector>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kObject = "text_completion";  // also that of a chunk

class CompletionsWriter final : public AnswerWriter {
 public:
  CompletionsWriter(AnswerInfo info, TokenBytes token_bytes, AnswerShape shape)
      : info_(std::move(info)),
        token_bytes_(std::move(token_bytes)),
        shape_(std::move(shape)),
        text_offsets_(shape_.num_choices(), 0),
        begun_(shape_.num_choices(), false),
        prompt_logprobs_(shape_.num_prompts),
        held_(shape_.num_choices()) {}

  std::string whole(std::span<const RequestUpdate> choices) override {
    Json list = Json::array();
    for (size_t i = 0; i < choices.size(); ++i) {
      // The prompt's logprobs are in the update of its first choice.
      const RequestUpdate& first = choices[i - i % shape_.choices_per_prompt];
      list.push_back(choice_json(i, choices[i], first.prompt_logprobs));
      if (shape_.shows_prompt_logprobs) {
        list.back()["prompt_logprobs"] = prompt_logprobs_json(first.prompt_logprobs, token_bytes_);
      }
    }
    Json out = answer_head(info_, kObject);
    out["choices"] = std::move(list);
    out["usage"] = usage_json(choices, shape_);
    out["timings"] = timings_json(choices);
    return json_text(out);
  }

  // The logprobs of an echo arrive with the prompt's first choice, so the other choices wait for that choice.
  std::string events(size_t choice, const RequestUpdate& update) override {
    if (!has_news(update, shape_)) {
      return "";
    }
    const size_t prompt = choice / shape_.choices_per_prompt;
    const size_t first = prompt * shape_.choices_per_prompt;
    const bool echoes_logprobs = !shape_.echo.empty() && !update.logprobs.empty();
    if (choice != first && !begun_[first] && (echoes_logprobs || held_[choice])) {
      join_update(held_[choice] ? *held_[choice] : held_[choice].emplace(), update);
      return "";
    }
    const bool begins = choice == first && !begun_[first];
    if (begins) {
      prompt_logprobs_[prompt] = update.prompt_logprobs;
    }
    std::string out = chunk(choice, update);
    for (size_t i = first + 1; begins && i < first + shape_.choices_per_prompt; ++i) {
      if (held_[i]) {
        out += chunk(i, *std::exchange(held_[i], std::nullopt));
      }
    }
    return out;
  }

  std::string last_events(std::span<const RequestUpdate> choices, bool with_usage) override {
    std::string out;
    if (with_usage) {
      Json last = answer_head(info_, kObject);
      last["choices"] = Json::array();
      last["usage"] = usage_json(choices, shape_);
      out = sse_event(json_text(last));
    }
    return out + sse_event("[DONE]");
  }

 private:
  std::string chunk(size_t choice, const RequestUpdate& update) {
    Json out = answer_head(info_, kObject);
    out["choices"] = Json::array(
        {choice_json(choice, update, prompt_logprobs_[choice / shape_.choices_per_prompt])});
    if (shape_.usage_in_chunks) {
      out["usage"] = usage_json({&update, 1}, shape_);
    }
    if (update.finish_reason != FinishReason::kNone) {
      out["timings"] = timings_json({&update, 1});
    }
    return sse_event(json_text(out));
  }

  // The logprobs of the generated tokens, after those of the prompt if the prompt is echoed.
  Json logprobs(size_t index, const RequestUpdate& update, std::span<const LogprobEntry> prompt) {
    const std::vector<LogprobEntry> none;
    std::span<const LogprobEntry> outputs = shape_.only_prompt ? none : update.logprobs;
    const bool echoes = !shape_.echo.empty() && !begun_[index] && !update.logprobs.empty();
    if (!echoes) {
      return outputs.empty() ? Json(nullptr)
                             : completion_logprobs(outputs, token_bytes_, text_offsets_[index]);
    }
    std::vector<LogprobEntry> all(prompt.begin(), prompt.end());
    all.insert(all.end(), outputs.begin(), outputs.end());
    return completion_logprobs(all,
                               token_bytes_,
                               text_offsets_[index],
                               shape_.first_tokens[index / shape_.choices_per_prompt]);
  }

  Json choice_json(size_t index,
                   const RequestUpdate& update,
                   std::span<const LogprobEntry> prompt) {
    Json logprobs_of_choice = logprobs(index, update, prompt);
    const bool is_first = !begun_[index];
    begun_[index] = true;
    std::string text = shape_.only_prompt ? "" : update.text;
    if (is_first && !shape_.echo.empty()) {
      text.insert(0, shape_.echo[index / shape_.choices_per_prompt]);
    }
    Json out;
    out["index"] = index;
    out["text"] = std::move(text);
    out["logprobs"] = std::move(logprobs_of_choice);
    out["finish_reason"] = finish_reason_json(update);
    out["stop_reason"] = stop_reason_json(update);
    if (shape_.shows_token_ids()) {
      if (is_first) {
        out["prompt_token_ids"] = shape_.prompt_token_ids[index / shape_.choices_per_prompt];
      }
      out["token_ids"] = shape_.only_prompt ? std::vector<TokenId>() : update.token_ids;
    }
    return out;
  }

  AnswerInfo info_;
  TokenBytes token_bytes_;
  AnswerShape shape_;
  std::vector<int64_t> text_offsets_;  // by choice, as the next
  std::vector<bool> begun_;
  std::vector<std::vector<LogprobEntry>> prompt_logprobs_;  // by prompt, in a stream
  std::vector<std::optional<RequestUpdate>> held_;          // by choice: waits for the first choice
};

}  // namespace

std::unique_ptr<AnswerWriter> make_completions_writer(AnswerInfo info,
                                                      TokenBytes token_bytes,
                                                      AnswerShape shape) {
  return std::make_unique<CompletionsWriter>(
      std::move(info), std::move(token_bytes), std::move(shape));
}

}  // namespace warprow
