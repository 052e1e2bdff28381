// SPDX-License-Identifier: Apache-2.0
#include "cli/top/full_screen.h"

#include "base/check.h"

#include <cerrno>
#include <csignal>
#include <initializer_list>
#include <poll.h>
#include <string_view>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace warprow {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // alternate screen, no cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";
constexpr std::initializer_list<int> kEndings = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};

// State for the signal handler. Written only while our handler is not installed.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
termios g_before{};
bool g_has_keys = false;
bool g_is_shown = false;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

// write, tcsetattr and _exit are async-signal-safe. The main loop cannot do this in time: it may wait for a server that
// sends nothing.
void leave_for_good(int number) {
  // A failed write means that the terminal is closed and needs no restoring.
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, kLeave.data(), kLeave.size());
  if (g_has_keys) {
    tcsetattr(STDIN_FILENO, TCSANOW, &g_before);
  }
  _exit(128 + number);
}

void handle_endings(void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  sigfillset(&action.sa_mask);
  for (const int number : kEndings) {
    sigaction(number, &action, nullptr);
  }
}

}  // namespace

FullScreen::FullScreen() : out_(STDOUT_FILENO) {
  WR_CHECK(!g_is_shown);
  g_is_shown = true;
  has_keys_ = tcgetattr(STDIN_FILENO, &g_before) == 0;
  g_has_keys = has_keys_;
  handle_endings(leave_for_good);
  if (has_keys_) {
    termios raw = g_before;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  out_.write(kEnter);
}

FullScreen::~FullScreen() {
  out_.write(kLeave);
  if (has_keys_) {
    tcsetattr(STDIN_FILENO, TCSANOW, &g_before);
  }
  handle_endings(SIG_DFL);
  g_is_shown = false;
}

void FullScreen::read_size(size_t& width, size_t& height) {
  winsize window{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
    width = window.ws_col;
    height = window.ws_row;
  }
}

bool FullScreen::show(const std::string& page) {
  std::string out = "\x1b[H";
  for (const char c : page) {
    out += c == '\n' ? "\x1b[K\r\n" : std::string(1, c);
  }
  if (out.ends_with("\r\n")) {
    out.resize(out.size() - 2);  // the last line must not scroll
  }
  return out_.write(out + "\x1b[J");
}

bool FullScreen::wait(double seconds) const {
  pollfd keys{.fd = has_keys_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
  const int ready = poll(&keys, 1, static_cast<int>(seconds * 1e3));
  if (ready < 0) {
    return errno == EINTR;  // the window has been resized
  }
  if (ready == 0) {
    return true;
  }
  char key = 0;
  constexpr char kCtrlC = 3;
  return read(STDIN_FILENO, &key, 1) == 1 && key != 'q' && key != 'Q' && key != kCtrlC;
}

}  // namespace warprow
