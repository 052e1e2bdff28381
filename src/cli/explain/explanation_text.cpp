// SPDX-License-Identifier: Apache-2.0
#include "cli/explain/explanation_text.h"

#include "cli/visible_text.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using nlohmann::json;

double number(const json& from, const char* name) {
  const auto found = from.find(name);
  return found != from.end() && found->is_number() ? found->get<double>() : 0;
}

std::string text_of(const json& from, const char* name) {
  const auto found = from.find(name);
  return found != from.end() && found->is_string() ? visible_text(found->get<std::string>()) : "";
}

std::string wait_reasons(const json& event) {
  std::string text;
  for (const json& reason : event.value("reasons", json::array())) {
    text += fmt::format("{}{} {:.1f} ms",
                        text.empty() ? "" : ", ",
                        text_of(reason, "reason"),
                        number(reason, "ms"));
  }
  return text;
}

std::string steps_of(const json& event) {
  const double count = number(event, "steps");
  return count > 1 ? fmt::format("{:.0f} steps from {:.0f}", count, number(event, "step"))
                   : fmt::format("step {:.0f}", number(event, "step"));
}

std::string details(const json& event) {
  const std::string name = text_of(event, "event");
  const auto n = [&event](const char* field) { return number(event, field); };
  if (name == "arrived") {
    return fmt::format("{:.0f} requests waited, {:.0f} ran", n("waiting"), n("running"));
  }
  if (name == "waited") {
    return fmt::format("{:.1f} ms: {}", n("ms"), wait_reasons(event));
  }
  if (name == "admitted") {
    return fmt::format("step {:.0f}, {:.0f} of {:.0f} tokens from the prefix cache",
                       n("step"),
                       n("cached_tokens"),
                       n("tokens"));
  }
  if (name == "chunk") {
    std::string text = fmt::format(
        "{}, {:.0f} tokens after {:.0f}", steps_of(event), n("tokens"), n("computed_before"));
    if (event.contains("ms")) {
      text += fmt::format("; {:.2f} ms, {:.0f} rows, {:.0f} tokens in all, {}",
                          n("ms"),
                          n("rows"),
                          n("step_tokens"),
                          text_of(event, "graph"));
    }
    return text;
  }
  if (name == "decode") {
    const json slowest = event.value("slowest_step", json::object());
    return fmt::format(
        "{:.1f} ms, steps {:.0f} to {:.0f}: {:.0f} of {:.2f} ms, {:.1f} rows (at most {:.0f}), "
        "{:.0f} "
        "beside prompts; slowest {:.0f} with {:.2f} ms",
        n("ms"),
        n("first_step"),
        n("last_step"),
        n("steps"),
        n("mean_step_ms"),
        n("mean_rows"),
        n("max_rows"),
        n("steps_with_prompts"),
        number(slowest, "step"),
        number(slowest, "ms"));
  }
  if (name == "preempted") {
    return fmt::format("step {:.0f}, {:.0f} tokens were computed", n("step"), n("tokens"));
  }
  if (name == "held") {
    return steps_of(event);
  }
  const std::string step = fmt::format("step {:.0f}", n("step"));
  return name == "ended" ? step + ", " + text_of(event, "reason") : step;
}

std::string step_line(const json& step) {
  return fmt::format(
      "\n{:>12.1f} ms  {:<8}step {:.0f}, {:.2f} ms, {:.0f} rows, {:.0f} tokens ({:.0f} of "
      "prompts), {}",
      number(step, "at_ms"),
      text_of(step, "kind"),
      number(step, "step"),
      number(step, "ms"),
      number(step, "rows"),
      number(step, "tokens"),
      number(step, "prompt_tokens"),
      text_of(step, "graph"));
}

std::string choice_text(const json& choice, bool is_only) {
  std::string text;
  if (!is_only) {
    text += fmt::format("\n\nchoice {:.0f}", number(choice, "choice"));
  }
  text += fmt::format(
      "\n{}: {:.0f} prompt tokens, {:.0f} of at most {:.0f} output tokens, {:.1f} ms in all"
      "\nqueue {:.1f} ms, prefill {:.1f} ms, decode {:.1f} ms, preempted {:.1f} ms\n",
      text_of(choice, "state"),
      number(choice, "prompt_tokens"),
      number(choice, "output_tokens"),
      number(choice, "max_tokens"),
      number(choice, "total_ms"),
      number(choice, "queue_ms"),
      number(choice, "prefill_ms"),
      number(choice, "decode_ms"),
      number(choice, "preempted_ms"));
  for (const json& why : choice.value("why", json::array())) {
    text += "\n- " + (why.is_string() ? visible_text(why.get<std::string>()) : "");
  }
  text += "\n";
  for (const json& event : choice.value("timeline", json::array())) {
    text += fmt::format("\n{:>12.1f} ms  {:<12}{}",
                        number(event, "at_ms"),
                        text_of(event, "event"),
                        details(event));
  }
  if (const double lost = number(choice, "events_left_out"); lost > 0) {
    text += fmt::format("\n{:.0f} events had no room", lost);
  }
  if (choice.contains("steps")) {
    text += "\n";
    for (const json& step : choice["steps"]) {
      text += step_line(step);
    }
  }
  return text;
}

}  // namespace

Result<std::string> explanation_text(const json& explanation) {
  const json choices = explanation.is_object() ? explanation.value("choices", json()) : json();
  if (!choices.is_array() || choices.empty()) {
    return fail(ErrorCode::kInvalidArgument, "/v1/requests: the answer explains no choice");
  }
  std::string text = fmt::format("{} ({}), {:.1f} s ago",
                                 text_of(explanation, "id"),
                                 text_of(explanation, "endpoint"),
                                 number(explanation, "age_s"));
  for (const json& choice : choices) {
    text += choice_text(choice, choices.size() == 1);
  }
  return text;
}

}  // namespace warprow
