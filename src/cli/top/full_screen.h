// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/output.h"

#include <cstddef>
#include <string>

namespace warprow {

// Puts the terminal into full-screen mode. The destructor restores it. SIGHUP, SIGINT, SIGQUIT and SIGTERM also restore
// it; the process then exits with 128 plus the signal's number. Ctrl-C arrives as a key.
//
// Thread: one, and one object at a time.
// Invariant: while the object exists, its signal handlers are installed.
class FullScreen {
 public:
  FullScreen();
  ~FullScreen();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // Sets the size in characters. Leaves the values unchanged if the size is unknown.
  static void read_size(size_t& width, size_t& height);

  // Shows a page of lines, each with a line end, from the top left. false: the terminal is closed.
  bool show(const std::string& page);

  // Waits for a key or until the time is over. false: the user wants to quit.
  [[nodiscard]] bool wait(double seconds) const;

 private:
  Output out_;
  bool has_keys_ = false;
};

}  // namespace warprow
