// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "cli/commands/command.h"
#include "cli/exit_code.h"
#include "cli/note.h"

#include <csignal>
#include <exception>
#include <new>
#include <unistd.h>

#include <fmt/format.h>

namespace warprow {
namespace {

ExitCode complain(const Error& error) {
  note("warprow: {}\n", error.message);
  return exit_code_of(error.code);
}

ExitCode run(const Arguments& arguments) {
  try {
    const Result<ExitCode> code = run_command_line(arguments);
    return code ? *code : complain(code.error());
  } catch (const StartupError& error) {
    return complain({error.code(), error.what()});
  } catch (const std::bad_alloc&) {
    return complain({ErrorCode::kOutOfMemory, "out of memory"});
  } catch (const std::exception& error) {
    return complain({ErrorCode::kInternal, fmt::format("internal error: {}", error.what())});
  }
}

// The kernel delivers to process 1 of a container only the signals for which it has a handler. Commands with their own
// handling replace these handlers.
void end_by_signals() {
  if (getpid() != 1) {
    return;
  }
  for (const int number : {SIGINT, SIGTERM}) {
    std::signal(number, [](int received) { _exit(128 + received); });
  }
}

}  // namespace
}  // namespace warprow

int main(int argc, char** argv) {
  // A closed pipe must be a failed write; see cli/output.h.
  std::signal(SIGPIPE, SIG_IGN);
  warprow::end_by_signals();
  return static_cast<int>(warprow::run({argv + 1, argv + argc}));
}
