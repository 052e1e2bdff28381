// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/serve_prompts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <random>

#include <fmt/format.h>

namespace warprow {
namespace {

using Random = std::mt19937_64;

// Token ids that nearly every vocabulary has. The first hundreds are often control tokens.
constexpr int64_t kFirstId = 300;
constexpr int64_t kUsualVocabSize = 8192;

constexpr std::array<const char*, 40> kWords = {
    "the",  "of",    "and",  "to",    "in",   "is",   "for",   "that", "with", "as",
    "on",   "are",   "by",   "be",    "this", "from", "at",    "or",   "have", "an",
    "was",  "not",   "can",  "their", "all",  "more", "which", "has",  "will", "one",
    "they", "other", "when", "use",   "were", "we",   "time",  "may",  "also", "new"};

// Draws uniformly from 0 to count - 1. The distributions of the standard library differ between implementations.
int64_t draw(Random& random, int64_t count) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
}

int64_t draw_len(Random& random, int64_t len, double ratio) {
  const auto least = static_cast<int64_t>(std::floor(static_cast<double>(len) * (1 - ratio)));
  const auto most = static_cast<int64_t>(std::ceil(static_cast<double>(len) * (1 + ratio)));
  return std::max<int64_t>(1, least + draw(random, most - least + 1));
}

Result<void> check_random(const ServeDataset& dataset) {
  if (dataset.name != "random") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--dataset-name: '{}' is none of random|custom", dataset.name));
  }
  if (dataset.range_ratio >= 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--random-range-ratio: {} must be below 1", dataset.range_ratio));
  }
  if (dataset.input_len < 1 || dataset.output_len < 1) {
    return fail(ErrorCode::kInvalidArgument,
                "--random-input-len and --random-output-len must be at least 1");
  }
  return {};
}

nlohmann::json draw_prompt(Random& random, const ServeDataset& dataset, int64_t len) {
  if (dataset.as_text) {
    std::string text;
    for (int64_t i = 0; i < len; ++i) {
      text += i == 0 ? "" : " ";
      text += kWords.at(static_cast<size_t>(draw(random, kWords.size())));
    }
    return text;
  }
  const int64_t vocab_size = dataset.vocab_size > 0 ? dataset.vocab_size : kUsualVocabSize;
  const int64_t first = vocab_size > 2 * kFirstId ? kFirstId : 0;
  nlohmann::json ids = nlohmann::json::array();
  for (int64_t i = 0; i < len; ++i) {
    ids.push_back(first + draw(random, vocab_size - first));
  }
  return ids;
}

std::vector<ServePrompt> random_prompts(const ServeDataset& dataset) {
  Random random(static_cast<uint64_t>(dataset.seed));
  const nlohmann::json prefix = draw_prompt(random, dataset, dataset.prefix_len);
  std::vector<ServePrompt> out;
  for (int64_t i = 0; i < dataset.num_prompts; ++i) {
    const int64_t input_len = draw_len(random, dataset.input_len, dataset.range_ratio);
    const int64_t output_len = draw_len(random, dataset.output_len, dataset.range_ratio);
    nlohmann::json prompt = draw_prompt(random, dataset, input_len);
    if (dataset.as_text && dataset.prefix_len > 0) {
      prompt = fmt::format("{} {}", prefix.get<std::string>(), prompt.get<std::string>());
    } else if (dataset.prefix_len > 0) {
      prompt.insert(prompt.begin(), prefix.begin(), prefix.end());
    }
    out.push_back({std::move(prompt), output_len});
  }
  return out;
}

Result<ServePrompt> read_line(const std::string& text, int64_t output_len) {
  const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto refused = [](const char* why) { return fail(ErrorCode::kInvalidArgument, why); };
  if (!line.is_object()) {
    return refused("no JSON object");
  }
  const nlohmann::json prompt = line.value("prompt", line.value("messages", nlohmann::json()));
  if (!prompt.is_string() && !prompt.is_array()) {
    return refused("neither \"prompt\" (a text or ids) nor \"messages\"");
  }
  const nlohmann::json tokens = line.value("output_tokens", nlohmann::json(output_len));
  if (!tokens.is_number_integer() || tokens.get<int64_t>() < 1) {
    return refused("output_tokens must be a whole number of at least 1");
  }
  return ServePrompt{prompt, tokens.get<int64_t>()};
}

Result<std::vector<ServePrompt>> file_prompts(const ServeDataset& dataset) {
  std::ifstream file(dataset.path.value_or(""));
  if (!file) {
    return fail(ErrorCode::kNotFound,
                fmt::format("--dataset-path: cannot read '{}'", dataset.path.value_or("")));
  }
  std::vector<ServePrompt> out;
  const auto wanted = static_cast<size_t>(dataset.num_prompts);
  int64_t number = 0;
  for (std::string text; out.size() < wanted && std::getline(file, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    Result<ServePrompt> prompt = read_line(text, dataset.custom_output_len);
    if (!prompt) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}:{}: {}", *dataset.path, number, prompt.error().message));
    }
    out.push_back(*std::move(prompt));
  }
  if (out.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--dataset-path: '{}' holds no prompts", *dataset.path));
  }
  for (size_t i = 0; out.size() < wanted; ++i) {
    out.push_back(ServePrompt(out[i]));
  }
  return out;
}

}  // namespace

Result<std::vector<ServePrompt>> make_prompts(const ServeDataset& dataset) {
  if (dataset.name == "custom") {
    return file_prompts(dataset);
  }
  if (Result<void> checked = check_random(dataset); !checked) {
    return tl::unexpected(checked.error());
  }
  return random_prompts(dataset);
}

// Tokens are drawn as if they were used, so that the lengths behind them are the same.
Result<std::vector<PromptLens>> random_prompt_lens(const ServeDataset& dataset) {
  if (Result<void> checked = check_random(dataset); !checked) {
    return tl::unexpected(checked.error());
  }
  Random random(static_cast<uint64_t>(dataset.seed));
  random.discard(static_cast<unsigned long long>(dataset.prefix_len));
  std::vector<PromptLens> out;
  for (int64_t i = 0; i < dataset.num_prompts; ++i) {
    const int64_t input_len = draw_len(random, dataset.input_len, dataset.range_ratio);
    const int64_t output_len = draw_len(random, dataset.output_len, dataset.range_ratio);
    random.discard(static_cast<unsigned long long>(input_len));
    out.push_back({dataset.prefix_len + input_len, output_len});
  }
  return out;
}

std::vector<double> arrival_times(int64_t count, double rate, double burstiness, int64_t seed) {
  std::vector<double> times(static_cast<size_t>(count), 0.0);
  if (std::isinf(rate)) {
    return times;
  }
  Random random(static_cast<uint64_t>(seed));
  std::gamma_distribution<double> interval(burstiness, 1 / (rate * burstiness));
  double now = 0;
  for (double& time : times) {
    now += interval(random);
    time = now;
  }
  const double scale = now > 0 ? static_cast<double>(count) / rate / now : 0;
  for (double& time : times) {
    time *= scale;
  }
  return times;
}

}  // namespace warprow
