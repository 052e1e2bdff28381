// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/flags/number_flags.h"
#include "cli/flags/server_flags.h"
#include "cli/output.h"
#include "cli/top/full_screen.h"
#include "cli/top/top_view.h"
#include "config/env.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTopSilence{5};
constexpr double kLongestInterval = 3600;

double now_s() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

Result<nlohmann::json> ask_state(HttpClient& client) {
  const Result<HttpAnswer> answer = client.ask({.path = "/v1/engine/state"});
  if (!answer) {
    return tl::unexpected(answer.error());
  }
  if (answer->status != 200) {
    return fail(ErrorCode::kInvalidArgument, "/v1/engine/state: " + refusal_text(*answer));
  }
  nlohmann::json state = nlohmann::json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "/v1/engine/state: the answer is no JSON object");
  }
  return state;
}

void watch(HttpClient& client, TopView& view, double interval_s) {
  FullScreen terminal;
  std::string trouble;
  bool wanted = true;
  while (wanted) {
    TopView::Screen screen{.color = !environment("NO_COLOR")};
    FullScreen::read_size(screen.width, screen.height);
    if (!trouble.empty() && screen.height > 1) {
      --screen.height;
    }
    std::string page = view.draw(screen);
    if (!trouble.empty()) {
      page += trouble.substr(0, screen.width) + "\n";
    }
    wanted = terminal.show(page) && terminal.wait(interval_s);
    Result<nlohmann::json> state = ask_state(client);
    trouble = state ? "" : state.error().message;
    if (state) {
      view.take(*std::move(state), now_s());
    }
  }
}

}  // namespace

Result<ExitCode> run_top(const Arguments& arguments) {
  CommandFrame frame("top", "watch a running server", "[FLAGS]");
  double interval_s = 1;
  bool once = isatty(STDOUT_FILENO) != 1;
  auto server = std::make_unique<ServerFlags>(frame.flags());
  add_number_flag(
      frame.flags(),
      {.name = "interval", .value = "", .group = "View", .help = "seconds between updates"},
      interval_s);
  frame.flags().add_switch({.name = "once",
                            .value = "",
                            .group = "View",
                            .help = "print one update and exit, as when piped; otherwise q exits"},
                           [&once](bool on) { once = on; });
  frame.add_output_flag();
  const auto begun = frame.begin(arguments, {.has_engine = false});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (Result<void> none = no_more_arguments(frame.more_arguments()); !none) {
    return tl::unexpected(none.error());
  }
  if (interval_s < 0.1 || interval_s > kLongestInterval) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--interval: {} must be 0.1 to 3600 seconds", interval_s));
  }
  const Result<std::unique_ptr<HttpClient>> client = server->connect(kTopSilence);
  if (!client) {
    return tl::unexpected(client.error());
  }
  Result<nlohmann::json> state = ask_state(**client);
  if (!state) {
    return tl::unexpected(state.error());
  }
  Output out(STDOUT_FILENO);
  if (frame.as_json()) {
    out.write(state->dump() + "\n");
    return out.status().map([] { return ExitCode::kOk; });
  }
  TopView view(server->origin()->url());
  view.take(*std::move(state), now_s());
  if (once) {
    out.write(view.draw({}));
    return out.status().map([] { return ExitCode::kOk; });
  }
  watch(**client, view, interval_s);
  return ExitCode::kOk;
}

}  // namespace warprow
