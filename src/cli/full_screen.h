// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/output.h"

#include <cstddef>
#include <string>

namespace warprow {

// The terminal in the mode of a full-screen program, as it was before at the end: of the object, or of the
// process by SIGHUP, SIGINT, SIGQUIT or SIGTERM, which then exits with 128 and the signal's number. Ctrl-C
// comes as a key.
//
// Thread: one, and one object at a time.
// Invariant: one that lives has the signals' handlers.
class FullScreen {
 public:
  FullScreen();
  ~FullScreen();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;

  // In characters; left as they are where nobody knows.
  static void read_size(size_t& width, size_t& height);

  // Lines, each ended, from the top left; false when there is no terminal any more.
  bool show(const std::string& page);

  // Waits so long; false when somebody wants to leave.
  [[nodiscard]] bool wait(double seconds) const;

 private:
  Output out_;
  bool has_keys_ = false;
};

}  // namespace warprow
