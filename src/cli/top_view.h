// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include <nlohmann/json.hpp>

namespace warprow {

// What `warprow top` shows of GET /v1/engine/state (docs/server.md). Rates come from one state to the
// next, so the first has none. A field that is missing shows as 0 or nothing: another version of the
// server is no reason to fail.
//
// Thread: one.
class TopView {
 public:
  struct Screen {
    size_t width = 100;
    size_t height = 0;  // lines; 0: as many as there are
    bool color = false;
  };

  // url: of the server, for the head.
  explicit TopView(std::string url) : url_(std::move(url)) {}

  // now_s: any clock's seconds.
  void take(nlohmann::json state, double now_s);
  // The newest state as lines, each ended and none wider than the screen.
  [[nodiscard]] std::string draw(const Screen& screen) const;

 private:
  struct Rates {
    double prompt = 0;  // tokens a second
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
