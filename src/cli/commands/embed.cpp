// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/commands/embed_run.h"
#include "cli/commands/request_file.h"
#include "cli/commands/single_run.h"
#include "cli/commands/vector_format.h"
#include "cli/flags/number_flags.h"
#include "cli/note.h"
#include "cli/update_queue.h"
#include "engine/engine.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

struct EmbedFlags {
  std::vector<std::string> texts;
  std::optional<std::string> input;
  std::optional<std::string> output;
  PoolingRequest request;
};

void add_flags(FlagSet& flags, EmbedFlags& embed) {
  flags.add_value({.name = "prompt",
                   .value = "TEXT",
                   .group = "Texts",
                   .help = "a text; may be given several times",
                   .short_name = "p"},
                  [&embed](const std::string& text) -> Result<void> {
                    embed.texts.push_back(nlohmann::json(text).dump(
                        -1, ' ', false, nlohmann::json::error_handler_t::replace));
                    return {};
                  });
  flags.add_text({.name = "input-file",
                  .value = "FILE",
                  .group = "Texts",
                  .help = "a text a line; a line that begins with { or \" is JSON: a text, or an "
                          "object with `text` or `token_ids`. - is standard input",
                  .short_name = "i"},
                 embed.input);
  flags.add_text({.name = "output-file",
                  .value = "FILE",
                  .group = "Texts",
                  .help = "results, a line of JSON each; NAME.npy: a NumPy array of float32, a row "
                          "each [standard output]",
                  .short_name = "o"},
                 embed.output);
  flags.add_value({.name = "dimensions",
                   .value = "N",
                   .group = "Vectors",
                   .help = "cut embeddings to so many values, before they are normalised"},
                  [&embed](const std::string& text) -> Result<void> {
                    return parse_count("dimensions", text).map([&](int64_t number) {
                      embed.request.dimensions = number;
                    });
                  });
  flags.add_switch({.name = "normalize",
                    .value = "",
                    .group = "Vectors",
                    .help = "embeddings of length 1 [as the model's files say]"},
                   [&embed](bool on) { embed.request.normalize = on; });
  flags.add_switch({.name = "use-activation",
                    .value = "",
                    .group = "Vectors",
                    .help = "probabilities of labels, not logits [true]"},
                   [&embed](bool on) { embed.request.activation = on; });
}

// The file that results are written to, closed at the end.
class ResultFd {
 public:
  static Result<ResultFd> open(const std::optional<std::string>& path) {
    if (!path || *path == "-") {
      return ResultFd(STDOUT_FILENO);
    }
    const int fd = ::open(path->c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("-o: cannot open {}: {}", *path, std::strerror(errno)));
    }
    return ResultFd(fd);
  }
  ResultFd(ResultFd&& other) noexcept : fd_(std::exchange(other.fd_, STDOUT_FILENO)) {}
  ResultFd& operator=(ResultFd&&) = delete;
  ~ResultFd() {
    if (fd_ != STDOUT_FILENO) {
      ::close(fd_);
    }
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  explicit ResultFd(int fd) : fd_(fd) {}
  int fd_;
};

std::unique_ptr<VectorFormat> make_format(const EmbedFlags& embed, const PoolingFacts& facts) {
  if (embed.output && embed.output->ends_with(".npy")) {
    // Requests are refused if they want more, so that only the rows of failures have this width.
    const int64_t wanted = embed.request.dimensions.value_or(facts.width);
    return make_npy_format(static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, facts.width)));
  }
  return make_jsonl_format(facts.task == PoolingTask::kEmbed);
}

Result<ExitCode> run(const EngineConfig& config, const EmbedFlags& embed) {
  std::ifstream file;
  std::stringstream given;
  for (const std::string& text : embed.texts) {
    given << text << '\n';
  }
  const bool from_file = embed.input && *embed.input != "-";
  if (from_file) {
    Result<std::ifstream> opened = open_requests("-i", *embed.input);
    if (!opened) {
      return tl::unexpected(opened.error());
    }
    file = *std::move(opened);
  }
  const Result<ResultFd> fd = ResultFd::open(embed.output);
  if (!fd) {
    return tl::unexpected(fd.error());
  }
  Output out(fd->get());
  UpdateQueue updates;
  const std::unique_ptr<Engine> engine = load_engine(config);
  updates.watch_signals();
  const std::unique_ptr<VectorFormat> format = make_format(embed, engine->model_facts().pooling);
  EmbedRun run(*engine, updates, embed.request, *format, out);
  std::istream& lines = from_file     ? static_cast<std::istream&>(file)
                        : embed.input ? std::cin
                                      : static_cast<std::istream&>(given);
  Result<ExitCode> code = run.run(lines, from_file ? count_requests(*embed.input) : 0);
  if (const std::string head = format->head(run.num_written()); code && !head.empty()) {
    if (pwrite(fd->get(), head.data(), head.size(), 0) != std::ssize(head)) {
      return fail(ErrorCode::kInternal,
                  fmt::format("-o: {}: {}", *embed.output, std::strerror(errno)));
    }
  }
  return code;
}

}  // namespace

Result<ExitCode> run_embed(const Arguments& arguments) {
  CommandFrame frame("embed",
                     "turn texts into vectors: embeddings, or scores of labels",
                     "MODEL (-p TEXT | -i FILE) [-o FILE] [FLAGS]");
  EmbedFlags embed;
  add_flags(frame.flags(), embed);
  const Result<std::optional<ExitCode>> begun = frame.begin(arguments, {});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (embed.texts.empty() == !embed.input) {
    return fail(ErrorCode::kInvalidArgument,
                embed.input ? "-i: brings its own texts; leave -p out"
                            : "no text: give -p TEXT or -i FILE");
  }
  EngineConfig config = frame.config();
  if (config.runner == "auto") {  // also for a model that could generate
    config.runner = "pooling";
  }
  return run(config, embed);
}

}  // namespace warprow
