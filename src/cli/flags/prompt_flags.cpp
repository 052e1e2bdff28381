// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/prompt_flags.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

Result<std::string> read_all(int fd, const std::string& path) {
  std::string out;
  char buffer[65536];
  while (true) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n == 0) {
      return out;
    }
    if (n > 0) {
      out.append(buffer, static_cast<size_t>(n));
    } else if (errno != EINTR) {
      return fail(ErrorCode::kNotFound,
                  fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    }
  }
}

}  // namespace

Result<std::string> read_bytes(const std::string& path) {
  if (path == "-") {
    return read_all(STDIN_FILENO, "standard input");
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return fail(ErrorCode::kNotFound,
                fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  Result<std::string> out = read_all(fd, path);
  ::close(fd);
  return out;
}

PromptFlags::PromptFlags(FlagSet& flags) {
  flags.add_text({.name = "prompt",
                  .value = "TEXT",
                  .group = "Prompt",
                  .help = "the text to go on from; special tokens in it are recognised",
                  .short_name = "p"},
                 text_);
  flags.add_text({.name = "chat",
                  .value = "TEXT",
                  .group = "Prompt",
                  .help = "a user's message, put into the model's chat template"},
                 chat_);
  flags.add_text({.name = "prompt-file",
                  .value = "FILE",
                  .group = "Prompt",
                  .help = "the prompt as raw bytes of a file; - is standard input"},
                 file_);
}

int PromptFlags::count() const {
  return int{text_.has_value()} + int{chat_.has_value()} + int{file_.has_value()};
}

Result<GenerationRequest> PromptFlags::read() const {
  if (count() != 1) {
    return fail(ErrorCode::kInvalidArgument,
                count() == 0 ? "no prompt: give -p TEXT, --chat TEXT or --prompt-file FILE"
                             : "several prompts: give one of -p, --chat and --prompt-file");
  }
  GenerationRequest request;
  if (text_) {
    request.prompt = *text_;
  } else if (chat_) {
    request.prompt = std::vector<ChatMessage>{{"user", *chat_}};
  } else {
    Result<std::string> bytes = read_bytes(*file_);
    if (!bytes) {
      return tl::unexpected(bytes.error());
    }
    request.prompt = std::move(*bytes);
  }
  return request;
}

}  // namespace warprow
