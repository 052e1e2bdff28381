// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_frame.h"
#include "cli/bench/child_process.h"
#include "files/model_files.h"

#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Monotonic nanoseconds. All processes of a machine share this clock.
int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

struct StartupFlags {
  BenchLoad load{.input_len = 32, .output_len = 1, .num_prompts = 1};
  int64_t num_iters_cold = 3;
  int64_t num_iters_warmup = 1;
  int64_t num_iters_warm = 5;
};

void add_startup_flags(BenchFrame& frame, StartupFlags& flags) {
  frame.add_count("input-len", "tokens of the first prompt", flags.load.input_len);
  frame.add_count("num-iters-cold",
                  "starts after the model's files were dropped from the page cache",
                  flags.num_iters_cold);
  frame.add_count("num-iters-warmup", "starts before the warm ones", flags.num_iters_warmup);
  frame.add_count(
      "num-iters-warm", "starts with the files in the page cache", flags.num_iters_warm);
}

// Seconds from the start of the process.
struct Startup {
  std::vector<double> ready;
  std::vector<double> first_token;
};

Result<void> start_once(const Arguments& arguments, Startup& startup) {
  Arguments child{"bench", kStartupChild};
  child.insert(child.end(), arguments.begin(), arguments.end());
  const int64_t begin = now_ns();
  const Result<std::string> said = output_of_ourselves(child);
  if (!said) {
    return tl::unexpected(said.error());
  }
  const AnswerJson times = AnswerJson::parse(*said, nullptr, false);
  if (!times.is_object()) {
    return fail(ErrorCode::kInternal, fmt::format("the started process said '{}'", *said));
  }
  const auto seconds = [&](const char* name) {
    return 1e-9 * static_cast<double>(times.at(name).get<int64_t>() - begin);
  };
  startup.ready.push_back(seconds("ready_ns"));
  startup.first_token.push_back(seconds("first_token_ns"));
  return {};
}

// Asks the kernel to drop a file's pages. Pages that a process has mapped stay.
void drop_from_page_cache(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

void drop_model(const ModelFiles& files) {
  if (files.kind == ModelFiles::Kind::kGguf) {
    drop_from_page_cache(files.path);
    return;
  }
  for (const auto& entry : std::filesystem::directory_iterator(files.path)) {
    if (entry.is_regular_file()) {
      drop_from_page_cache(entry.path());
    }
  }
}

Result<Startup> start_often(const Arguments& arguments,
                            int64_t count,
                            const ModelFiles* dropped_before) {
  Startup startup;
  for (int64_t i = 0; i < count; ++i) {
    if (dropped_before != nullptr) {
      drop_model(*dropped_before);
    }
    if (auto started = start_once(arguments, startup); !started) {
      return tl::unexpected(started.error());
    }
  }
  return startup;
}

// Adds the results of one kind of start to the JSON, under vLLM's names, and to the text.
void add_kind(const std::string& kind,
              const Startup& startup,
              AnswerJson& json,
              std::string& text) {
  if (startup.ready.empty()) {
    return;
  }
  json[fmt::format("avg_{}_startup_time", kind)] = mean(startup.ready);
  json[kind + "_startup_times"] = startup.ready;
  json[kind + "_startup_percentiles"] = percentiles_json(startup.ready);
  json[fmt::format("avg_{}_first_token_time", kind)] = mean(startup.first_token);
  json[kind + "_first_token_times"] = startup.first_token;
  json[kind + "_first_token_percentiles"] = percentiles_json(startup.first_token);
  text += fmt::format("{}{}: ready after {:.3f} s, first token after {:.3f} s (medians of {})\n ",
                      text.empty() ? "" : "\n",
                      kind,
                      percentile(startup.ready, 50),
                      percentile(startup.first_token, 50),
                      startup.ready.size());
  for (size_t i = 0; i < startup.ready.size(); ++i) {
    text += fmt::format(" {:.3f}/{:.3f}", startup.ready[i], startup.first_token[i]);
  }
}

}  // namespace

Result<ExitCode> run_bench_startup(const Arguments& arguments) {
  BenchFrame frame(
      "bench startup",
      "measures repeated starts of this program, each until it has answered one prompt");
  StartupFlags flags;
  add_startup_flags(frame, flags);
  const auto begun = frame.begin(arguments);
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  const Result<ModelFiles> files = resolve_model(
      frame.config().model,
      CachePaths::from_environment(),
      frame.config().load_format == "dummy" ? WeightFiles::kNotRead : WeightFiles::kRequired);
  if (!files) {
    return tl::unexpected(files.error());
  }
  const Result<Startup> cold = start_often(arguments, flags.num_iters_cold, &*files);
  if (!cold) {
    return tl::unexpected(cold.error());
  }
  if (auto warmed = start_often(arguments, flags.num_iters_warmup, nullptr); !warmed) {
    return tl::unexpected(warmed.error());
  }
  const Result<Startup> warm = start_often(arguments, flags.num_iters_warm, nullptr);
  if (!warm) {
    return tl::unexpected(warm.error());
  }
  AnswerJson json;
  std::string text;
  add_kind("cold", *cold, json, text);
  add_kind("warm", *warm, json, text);
  json["note"] =
      "cold: the model's files were dropped from the page cache as far as the kernel does it; the "
      "program and its libraries stay there";
  return frame.report(json, text + "\n" + json["note"].get<std::string>());
}

Result<ExitCode> run_bench_startup_child(const Arguments& arguments) {
  BenchFrame frame("bench startup-child", "one start of bench startup");
  StartupFlags flags;
  add_startup_flags(frame, flags);
  const auto begun = frame.begin(arguments);
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  const std::unique_ptr<Engine> engine = load_engine(frame.config());
  const int64_t ready = now_ns();
  const Result<double> first = BenchRun(*engine, flags.load).run();
  const int64_t first_token = now_ns();
  if (!first) {
    return tl::unexpected(first.error());
  }
  fmt::print("{}", json_line({{"ready_ns", ready}, {"first_token_ns", first_token}}));
  return ExitCode::kOk;
}

}  // namespace warprow
