// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include <nlohmann/json.hpp>

namespace warprow {

// The display of `warprow top` for GET /v1/engine/state (docs/server.md). Rates are computed from two successive
// states, so the first has none. A missing field shows as 0 or as nothing, so that other versions of the server work.
//
// Thread: one.
class TopView {
 public:
  struct Screen {
    size_t width = 100;
    size_t height = 0;  // lines; 0: no limit
    bool color = false;
  };

  // url: the server's URL, for the title line.
  explicit TopView(std::string url) : url_(std::move(url)) {}

  // now_s: seconds of any monotonic clock.
  void take(nlohmann::json state, double now_s);
  // The newest state as lines. Each has a line end, and none is wider than the screen.
  [[nodiscard]] std::string draw(const Screen& screen) const;

 private:
  struct Rates {
    double prompt = 0;  // tokens per second
    double output = 0;
  };

  std::string url_;
  nlohmann::json state_;
  double taken_s_ = 0;
  bool has_rates_ = false;
  Rates rates_;
  std::deque<double> output_rates_;  // the newest last
};

}  // namespace warprow
