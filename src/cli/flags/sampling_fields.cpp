// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr SamplingField kFields[] = {
    {"max_tokens",
     &SamplingOptions::max_tokens,
     "longest answer in tokens; unset: to the end of the context",
     true},
    {"temperature",
     &SamplingOptions::temperature,
     "0: always the likeliest token; unset: the model's, else 1",
     true},
    {"top_p",
     &SamplingOptions::top_p,
     "keep the likeliest tokens that together reach this probability",
     true},
    {"top_k", &SamplingOptions::top_k, "keep the N likeliest tokens; 0 or -1: all", true},
    {"min_p",
     &SamplingOptions::min_p,
     "drop tokens less likely than this share of the likeliest",
     true},
    {"seed",
     &SamplingOptions::seed,
     "draws the random numbers; the same seed gives the same answer",
     true},
    {"stop",
     &SamplingOptions::stop,
     "end the answer before this text; may be given several times",
     true},
    {"stop_token_ids",
     &SamplingOptions::stop_token_ids,
     "end the answer at these token ids: 2,198"},
    {"ignore_eos", &SamplingOptions::ignore_eos, "go on after the end-of-sequence token"},
    {"logprobs",
     &SamplingOptions::logprobs,
     "with each token its log probability and those of the N likeliest (JSON)"},
    {"logprob_token_ids",
     &SamplingOptions::logprob_token_ids,
     "with each token the log probabilities of these token ids instead (JSON): 2,198"},
    {"prompt_logprobs",
     &SamplingOptions::prompt_logprobs,
     "log probabilities of the prompt's tokens too, with the N likeliest of each (JSON)"},
    {"n", &SamplingOptions::n, "answers to each prompt"},
    {"min_tokens", &SamplingOptions::min_tokens, "shortest answer in tokens"},
    {"repetition_penalty",
     &SamplingOptions::repetition_penalty,
     "above 1: lowers the logits of tokens in prompt and answer"},
    {"frequency_penalty",
     &SamplingOptions::frequency_penalty,
     "subtracted for each time a token is in the answer"},
    {"presence_penalty",
     &SamplingOptions::presence_penalty,
     "subtracted once if a token is in the answer"},
    {"allowed_token_ids",
     &SamplingOptions::allowed_token_ids,
     "only these token ids may be in the answer: 2,198"},
    {"bad_words",
     &SamplingOptions::bad_words,
     "text that must not be in the answer; may be given several times"},
    {"logit_bias",
     &SamplingOptions::logit_bias,
     "added to the logits of token ids, from -100 to 100: 2=-5,198=1.5"},
    {"include_stop_str_in_output",
     &SamplingOptions::include_stop_str_in_output,
     "leave the stop text at the end of the answer"},
    {"skip_special_tokens",
     &SamplingOptions::skip_special_tokens,
     "leave special tokens out of the text [true]"},
    {"speculate",
     &SamplingOptions::speculate,
     "draft tokens for this request if the engine drafts any [true]"},
    {"spaces_between_special_tokens",
     &SamplingOptions::spaces_between_special_tokens,
     "spaces that the tokenizer puts between special tokens are a part of the text [true]"},
};

// Reads the whole text as a number of type T.
template <typename T>
bool read_number(std::string_view text, T& out) {
  if (!text.empty() && text.front() == '+') {
    text.remove_prefix(1);
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// The error names the flag, so that the user sees which of several numbers is wrong.
template <typename T>
Result<T> parse(const std::string& flag, std::string_view text) {
  T value{};
  if (read_number(text, value)) {
    return value;
  }
  const char* kind = std::is_same_v<T, double> ? "number" : "whole number";
  return fail(ErrorCode::kInvalidArgument, fmt::format("--{}: '{}' is not a {}", flag, text, kind));
}

Result<void> read_ids(const std::string& flag, std::string_view text, std::vector<int64_t>& out) {
  while (true) {
    const size_t end = std::min(text.find(','), text.size());
    const Result<int64_t> id = parse<int64_t>(flag, text.substr(0, end));
    if (!id) {
      return tl::unexpected(id.error());
    }
    out.push_back(*id);
    if (end == text.size()) {
      return {};
    }
    text.remove_prefix(end + 1);
  }
}

// Reads a list of ID=BIAS. The later of two entries for one token counts.
Result<void> read_biases(const std::string& flag,
                         std::string_view text,
                         std::map<int64_t, double>& out) {
  while (true) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view pair = text.substr(0, end);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--{}: '{}' is not of the form ID=BIAS", flag, pair));
    }
    const Result<int64_t> id = parse<int64_t>(flag, pair.substr(0, equals));
    if (!id) {
      return tl::unexpected(id.error());
    }
    const Result<double> bias = parse<double>(flag, pair.substr(equals + 1));
    if (!bias) {
      return tl::unexpected(bias.error());
    }
    out[*id] = *bias;
    if (end == text.size()) {
      return {};
    }
    text.remove_prefix(end + 1);
  }
}

// The ReadValue for a flag of each type.
template <typename T>
FlagSet::ReadValue reader(const std::string& flag, std::optional<T>& target) {
  return [flag, &target](const std::string& text) -> Result<void> {
    const Result<T> value = parse<T>(flag, text);
    if (!value) {
      return tl::unexpected(value.error());
    }
    target = *value;
    return {};
  };
}
FlagSet::ReadValue reader(const std::string&, std::vector<std::string>& target) {
  return [&target](const std::string& text) -> Result<void> {
    target.push_back(text);
    return {};
  };
}
FlagSet::ReadValue reader(const std::string& flag, std::vector<int64_t>& target) {
  return [flag, &target](const std::string& text) { return read_ids(flag, text, target); };
}

FlagSet::ReadValue reader(const std::string& flag, std::optional<std::vector<int64_t>>& target) {
  return [flag, &target](const std::string& text) {
    return read_ids(flag, text, target ? *target : target.emplace());
  };
}
FlagSet::ReadValue reader(const std::string& flag, std::map<int64_t, double>& target) {
  return [flag, &target](const std::string& text) { return read_biases(flag, text, target); };
}

template <typename T>
const char* placeholder() {
  if constexpr (std::is_same_v<T, bool>) {
    return "";
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    return "X";
  } else if constexpr (std::is_same_v<T, std::optional<int64_t>>) {
    return "N";
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return "TEXT";
  } else if constexpr (std::is_same_v<T, std::map<int64_t, double>>) {
    return "ID=X";
  } else {
    return "IDS";
  }
}

template <typename T>
nlohmann::json value_json(const T& value) {
  return value;
}
template <typename T>
nlohmann::json value_json(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}
nlohmann::json value_json(const std::map<int64_t, double>& value) {
  nlohmann::json out = nlohmann::json::object();
  for (const auto& [id, bias] : value) {
    out[std::to_string(id)] = bias;
  }
  return out;
}

}  // namespace

void for_each_sampling_field(const std::function<void(const SamplingField&)>& visit) {
  for (const SamplingField& field : kFields) {
    visit(field);
  }
}

const SamplingField* find_sampling_field(std::string_view name) {
  for (const SamplingField& field : kFields) {
    if (name == field.name) {
      return &field;
    }
  }
  return nullptr;
}

nlohmann::json sampling_json(const SamplingOptions& options) {
  nlohmann::json out = nlohmann::json::object();
  const SamplingOptions unset;
  for_each_sampling_field([&](const SamplingField& field) {
    std::visit(
        [&](auto member) {
          if (options.*member != unset.*member) {
            out[field.name] = value_json(options.*member);
          }
        },
        field.member);
  });
  return out;
}

void add_sampling_flags(FlagSet& flags, SamplingOptions& options) {
  for_each_sampling_field([&](const SamplingField& field) {
    std::string name = field.name;
    std::replace(name.begin(), name.end(), '_', '-');
    std::visit(
        [&](auto member) {
          auto& target = options.*member;
          using T = std::remove_reference_t<decltype(target)>;
          Flag flag{.name = name,
                    .value = placeholder<T>(),
                    .group = "Sampling",
                    .help = field.help,
                    .common = field.common};
          if constexpr (std::is_same_v<T, bool>) {
            flags.add_switch(std::move(flag), [&target](bool on) { target = on; });
          } else {
            flags.add_value(std::move(flag), reader(name, target));
          }
        },
        field.member);
  });
}

}  // namespace warprow
