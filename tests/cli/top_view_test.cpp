// SPDX-License-Identifier: Apache-2.0
#include "cli/top/top_view.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

json busy_state() {
  return json::parse(R"({
    "model": "m", "version": "1.2.3", "uptime_s": 192.4, "draining": false, "connections": 3,
    "engine": {"phase": "device", "phase_s": 0.01, "trouble": null, "sleeping": false,
               "answered": true, "steps": 12345},
    "scheduler": {"running": 6, "waiting": 2, "preemptions": 1, "max_num_seqs": 8},
    "kv": {"blocks": 100, "blocks_used": 25, "block_size": 16},
    "tokens": {"prompt": 1000, "output": 500, "prefix_hit": 250},
    "recent_steps": {"seconds": 10, "count": 10, "tokens": 60, "mean_rows": 6, "mean_ms": 2,
                     "p50_ms": 1.9, "p99_ms": 4.25, "busy_share": 0.5, "device_wait_share": 0.7},
    "requests": [
      {"id": "cmpl-0123456789abcdef0123456789abcdef", "choice": 1, "state": "running", "age_s": 3.21,
       "ttft_ms": 12.4, "prompt_tokens": 1024, "cached_tokens": 512, "output_tokens": 64,
       "max_tokens": 256, "tokens_per_s": 120.06, "kv_blocks": 68, "row": 2},
      {"id": "b", "choice": 0, "state": "waiting", "age_s": 61, "ttft_ms": null,
       "prompt_tokens": 20480, "max_tokens": 16, "row": null}]})");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    out.push_back(line);
  }
  return out;
}

TEST(TopView, ShowsTheState) {
  TopView view("http://h:1");
  view.take(busy_state(), 5);
  const std::string text = view.draw({});
  EXPECT_THAT(text, HasSubstr("m  http://h:1  warprow 1.2.3  up 3m12s  3 connections\n"));
  EXPECT_THAT(text, HasSubstr("engine    device for 0.0s, 12.3k steps\n"));
  EXPECT_THAT(text, HasSubstr("██████████████████░░░░░░ 6 of 8 rows, 2 waiting, 1 preempted"));
  EXPECT_THAT(text, HasSubstr("██████░░░░░░░░░░░░░░░░░░ 400 of 1600 tokens, 25 %"));
  EXPECT_THAT(text, HasSubstr("busy 50 %, of it 70 % waiting for the device"));
  EXPECT_THAT(text, HasSubstr("p50 1.90 ms, p99 4.25 ms, 6.0 rows and 6.0 tokens each"));
  EXPECT_THAT(text, HasSubstr("500 out, 1000 in, of which 25 % were cached"));
  EXPECT_THAT(text,
              HasSubstr("~cdef0123456789abcdef#1 running      3.2s    12ms    1024     512      "
                        "64/256     120.1      68\n"));
  EXPECT_THAT(text, HasSubstr("waiting     1m01s       -   20.5k       0        0/16"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(TopView, RatesComeFromTwoStates) {
  TopView view("u");
  json state = busy_state();
  view.take(state, 5);
  state["tokens"]["output"] = 700;
  state["tokens"]["prompt"] = 31000;
  view.take(state, 7);
  EXPECT_THAT(view.draw({}), HasSubstr("100/s out, 15.0k/s in  █\n"));
  view.take(state, 8);
  EXPECT_THAT(view.draw({}), HasSubstr("0/s out, 0/s in  █▁\n"));
  state["tokens"]["output"] = 0;  // another server at the same address
  view.take(state, 9);
  EXPECT_THAT(view.draw({}), HasSubstr("0/s out"));
}

TEST(TopView, TroubleIsShown) {
  TopView view("u");
  json state = busy_state();
  state["draining"] = true;
  state["engine"]["trouble"] = "stuck on the device";
  view.take(state, 0);
  EXPECT_THAT(view.draw({}), HasSubstr("shutting down"));
  EXPECT_THAT(view.draw({}), HasSubstr("stuck on the device"));
  EXPECT_THAT(view.draw({.color = true}), HasSubstr("\x1b[31mdevice\x1b[0m"));
  state["engine"]["trouble"] = nullptr;
  state["engine"]["answered"] = false;
  view.take(state, 0);
  EXPECT_THAT(view.draw({}), HasSubstr("does not answer"));
}

TEST(TopView, NoServerSteersTheTerminal) {
  TopView view("u");
  json state = busy_state();
  state["model"] = "m\x1b[2J\n\x7f\xc2\x9bé";
  state["requests"][1]["id"] = "a\x1b]0;t\a";
  view.take(state, 0);
  EXPECT_THAT(view.draw({}), HasSubstr("m?[2J???é  u"));
  EXPECT_THAT(view.draw({}), HasSubstr("a?]0;t? "));
  EXPECT_THAT(view.draw({}), Not(HasSubstr("\x1b")));
}

TEST(TopView, FitsTheScreen) {
  TopView view("u");
  json state = busy_state();
  for (int i = 0; i < 40; ++i) {
    state["requests"].push_back(state["requests"][1]);
  }
  view.take(state, 0);
  const auto lines = lines_of(view.draw({.width = 40, .height = 15}));
  EXPECT_EQ(lines.size(), 15U);
  EXPECT_EQ(lines.back(), "and 37 more");
  for (const std::string& line : lines) {
    const auto is_start = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
    EXPECT_LE(std::count_if(line.begin(), line.end(), is_start), 40) << line;
  }
  for (size_t height = 1; height < 12; ++height) {
    EXPECT_EQ(lines_of(view.draw({.height = height})).size(), height);
  }
}

TEST(TopView, AnotherServersStateIsNoFailure) {
  TopView view("u");
  for (const char* text : {"{}",
                           R"({"requests": 3, "engine": [], "recent_steps": {"p50_ms": "x"}})",
                           R"({"requests": [{}, null]})"}) {
    view.take(json::parse(text), 1);
    EXPECT_THAT(view.draw({}), HasSubstr("rows"));
  }
}

}  // namespace
}  // namespace warprow
