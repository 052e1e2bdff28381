// SPDX-License-Identifier: Apache-2.0
#include "cli/top/top_view.h"

#include "cli/visible_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

using PlainJson = nlohmann::json;

constexpr size_t kHistory = 60;
constexpr size_t kBarWidth = 24;

double number_at(const PlainJson& object, const char* path) {
  const PlainJson::json_pointer pointer(path);
  return object.contains(pointer) && object[pointer].is_number() ? object[pointer].get<double>()
                                                                 : 0.0;
}

int64_t count_at(const PlainJson& object, const char* path) {
  return static_cast<int64_t>(std::llround(number_at(object, path)));
}

std::string text_at(const PlainJson& object, const char* path) {
  const PlainJson::json_pointer pointer(path);
  return object.contains(pointer) && object[pointer].is_string()
             ? object[pointer].get<std::string>()
             : std::string();
}

bool is_true_at(const PlainJson& object, const char* path) {
  const PlainJson::json_pointer pointer(path);
  return object.contains(pointer) && object[pointer] == true;
}

// 950, 12.3k, 4.5M.
std::string short_count(double count) {
  if (count < 10'000) {
    return fmt::format("{:.0f}", count);
  }
  return count < 1e6 ? fmt::format("{:.1f}k", count / 1e3) : fmt::format("{:.1f}M", count / 1e6);
}

// 4.2s, 3m12s, 2h05m, 4d03h.
std::string short_time(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  if (seconds < 60) {
    return fmt::format("{:.1f}s", seconds);
  }
  if (whole < 3600) {
    return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  }
  return whole < 86400 ? fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60)
                       : fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
}

std::string bar(double share) {
  const double filled = std::clamp(share, 0.0, 1.0) * static_cast<double>(kBarWidth);
  std::string out;
  for (size_t i = 0; i < kBarWidth; ++i) {
    out += static_cast<double>(i) + 0.5 < filled ? "█" : "░";
  }
  return out;
}

std::string spark_line(const std::deque<double>& values, size_t most) {
  constexpr std::array<const char*, 8> kLevels = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const size_t count = std::min(values.size(), most);
  const double highest = *std::max_element(values.begin(), values.end());
  std::string out;
  for (size_t i = values.size() - count; i < values.size(); ++i) {
    const double level = highest > 0 ? values[i] / highest * 7.0 : 0.0;
    out += kLevels.at(static_cast<size_t>(std::lround(level)));
  }
  return out;
}

// Builds lines and counts their width in characters, not bytes. Color codes have no width.
class Page {
 public:
  explicit Page(const TopView::Screen& screen) : screen_(screen) {}

  Page& add(std::string_view given, const char* color = "") {
    const std::string text = visible_text(given);
    if (*color != '\0' && screen_.color) {
      line_ += fmt::format("\x1b[{}m", color);
    }
    for (size_t at = 0; at < text.size() && column_ < screen_.width;) {
      const size_t begin = at++;
      while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
        ++at;
      }
      line_.append(text, begin, at - begin);
      ++column_;
    }
    if (*color != '\0' && screen_.color) {
      line_ += "\x1b[0m";
    }
    return *this;
  }
  // Pads with spaces to `column`.
  Page& to(size_t column) { return add(std::string(column > column_ ? column - column_ : 0, ' ')); }
  void end_line() {
    if (!is_full()) {
      lines_ += line_ + "\n";
      ++num_lines_;
    }
    line_.clear();
    column_ = 0;
  }
  [[nodiscard]] size_t lines_left() const {
    return screen_.height == 0 ? SIZE_MAX : screen_.height - num_lines_;
  }
  [[nodiscard]] bool is_full() const { return lines_left() == 0; }
  [[nodiscard]] const std::string& text() const { return lines_; }

 private:
  TopView::Screen screen_;
  std::string lines_;
  std::string line_;
  size_t column_ = 0;
  size_t num_lines_ = 0;
};

constexpr const char* kBold = "1";
constexpr const char* kDim = "2";
constexpr const char* kRed = "31";
constexpr const char* kGreen = "32";
constexpr const char* kCyan = "36";
constexpr size_t kLabel = 10;
constexpr size_t kAfterBar = kLabel + kBarWidth + 1;

void draw_head(const PlainJson& state, const std::string& url, Page& page) {
  page.add(text_at(state, "/model"), kBold)
      .add(fmt::format("  {}  warprow {}  up {}  {} connections",
                       url,
                       text_at(state, "/version"),
                       short_time(number_at(state, "/uptime_s")),
                       count_at(state, "/connections")));
  if (is_true_at(state, "/draining")) {
    page.add("  shutting down", kRed);
  }
  page.end_line();
}

void draw_engine(const PlainJson& state, Page& page) {
  const std::string trouble = text_at(state, "/engine/trouble");
  const bool sleeps = is_true_at(state, "/engine/sleeping");
  page.add("engine", kDim)
      .to(kLabel)
      .add(text_at(state, "/engine/phase"), trouble.empty() ? kGreen : kRed);
  page.add(fmt::format(" for {}, {} steps{}",
                       short_time(number_at(state, "/engine/phase_s")),
                       short_count(number_at(state, "/engine/steps")),
                       sleeps ? ", asleep" : ""));
  if (!trouble.empty()) {
    page.add("  " + trouble, kRed);
  } else if (state.contains("engine") && !is_true_at(state, "/engine/answered")) {
    page.add("  does not answer", kRed);
  }
  page.end_line();
}

void draw_batch(const PlainJson& state, Page& page) {
  const double running = number_at(state, "/scheduler/running");
  const double most = std::max(1.0, number_at(state, "/scheduler/max_num_seqs"));
  page.add("batch", kDim).to(kLabel).add(bar(running / most), kCyan).to(kAfterBar);
  page.add(fmt::format("{:.0f} of {:.0f} rows", running, most))
      .add(fmt::format(", {} waiting, {} preempted so far",
                       count_at(state, "/scheduler/waiting"),
                       count_at(state, "/scheduler/preemptions")));
  page.end_line();
  const double blocks = std::max(1.0, number_at(state, "/kv/blocks"));
  const double used = number_at(state, "/kv/blocks_used");
  const double block_size = number_at(state, "/kv/block_size");
  page.add("KV cache", kDim).to(kLabel).add(bar(used / blocks), kCyan).to(kAfterBar);
  page.add(fmt::format("{} of {} tokens, {:.0f} %",
                       short_count(used * block_size),
                       short_count(blocks * block_size),
                       100 * used / blocks));
  page.end_line();
}

void draw_drafts(const PlainJson& state, Page& page) {
  if (!state.contains("drafts")) {
    return;
  }
  const double drafted = number_at(state, "/drafts/tokens");
  const double accepted = number_at(state, "/drafts/accepted");
  const double runs = number_at(state, "/drafts/runs");
  const double share = accepted / std::max(1.0, drafted);
  page.add("drafts", kDim).to(kLabel).add(bar(share), kCyan).to(kAfterBar);
  page.add(fmt::format("{} of {} tokens accepted, {:.2f} more tokens a step with drafts",
                       short_count(accepted),
                       short_count(drafted),
                       accepted / std::max(1.0, runs)));
  page.end_line();
}

void draw_steps(const PlainJson& state, Page& page) {
  const PlainJson steps = state.value("recent_steps", PlainJson::object());
  const double busy = number_at(steps, "/busy_share");
  page.add("steps", kDim).to(kLabel).add(bar(busy), kCyan).to(kAfterBar);
  page.add(fmt::format("busy {:.0f} %, of it {:.0f} % waiting for the device",
                       100 * busy,
                       100 * number_at(steps, "/device_wait_share")));
  page.end_line();
  page.to(kLabel).add(
      fmt::format("p50 {:.2f} ms, p99 {:.2f} ms, {:.1f} rows and {:.1f} tokens each",
                  number_at(steps, "/p50_ms"),
                  number_at(steps, "/p99_ms"),
                  number_at(steps, "/mean_rows"),
                  number_at(steps, "/tokens") / std::max(1.0, number_at(steps, "/count"))));
  page.end_line();
}

// A column of the table of requests.
struct Column {
  const char* title;
  size_t width;
  bool left = false;
};
constexpr Column kColumns[] = {{"REQUEST", 24, true},
                               {"STATE", 10, true},
                               {"AGE", 7},
                               {"TTFT", 8},
                               {"PROMPT", 8},
                               {"CACHED", 8},
                               {"OUTPUT", 12},
                               {"TOKENS/S", 10},
                               {"BLOCKS", 8}};

std::vector<std::string> request_cells(const PlainJson& request) {
  const bool has_first = request.contains("ttft_ms") && request["ttft_ms"].is_number();
  std::string id = text_at(request, "/id");
  if (const int64_t choice = count_at(request, "/choice"); choice > 0) {
    id += fmt::format("#{}", choice);
  }
  constexpr size_t kIdWidth = kColumns[0].width - 1;
  if (id.size() > kIdWidth) {  // keep the end, in which ids differ
    id = "~" + id.substr(id.size() - kIdWidth + 1);
  }
  return {std::move(id),
          text_at(request, "/state"),
          short_time(number_at(request, "/age_s")),
          has_first ? fmt::format("{:.0f}ms", request["ttft_ms"].get<double>()) : "-",
          short_count(number_at(request, "/prompt_tokens")),
          short_count(number_at(request, "/cached_tokens")),
          fmt::format("{}/{}",
                      count_at(request, "/output_tokens"),
                      short_count(number_at(request, "/max_tokens"))),
          fmt::format("{:.1f}", number_at(request, "/tokens_per_s")),
          short_count(number_at(request, "/kv_blocks"))};
}

void draw_row(const std::vector<std::string>& cells, const char* color, Page& page) {
  std::string row;
  for (size_t i = 0; i < cells.size(); ++i) {
    const Column& column = kColumns[i];
    row += column.left ? fmt::format("{:<{}}", cells[i], column.width)
                       : fmt::format("{:>{}}", cells[i], column.width);
  }
  page.add(row, color);
  page.end_line();
}

void draw_requests(const PlainJson& state, Page& page) {
  const auto requests = state.find("requests");
  if (requests == state.end() || !requests->is_array() || requests->empty()) {
    return;
  }
  page.end_line();
  std::vector<std::string> titles;
  for (const Column& column : kColumns) {
    titles.emplace_back(column.title);
  }
  draw_row(titles, kDim, page);
  size_t shown = 0;
  for (const PlainJson& request : *requests) {
    const size_t rest = requests->size() - shown;
    if (page.lines_left() == 1 && rest > 1) {
      page.add(fmt::format("and {} more", rest), kDim);
      page.end_line();
      return;
    }
    draw_row(request_cells(request), "", page);
    ++shown;
  }
}

}  // namespace

void TopView::take(PlainJson state, double now_s) {
  const double seconds = now_s - taken_s_;
  has_rates_ = !state_.is_null() && seconds > 0;
  if (has_rates_) {
    const auto rate = [&](const char* path) {
      return std::max(0.0, (number_at(state, path) - number_at(state_, path)) / seconds);
    };
    rates_ = {rate("/tokens/prompt"), rate("/tokens/output")};
    output_rates_.push_back(rates_.output);
    if (output_rates_.size() > kHistory) {
      output_rates_.pop_front();
    }
  }
  state_ = std::move(state);
  taken_s_ = now_s;
}

std::string TopView::draw(const Screen& screen) const {
  Page page(screen);
  draw_head(state_, url_, page);
  draw_engine(state_, page);
  draw_batch(state_, page);
  draw_drafts(state_, page);
  draw_steps(state_, page);
  page.add("tokens", kDim).to(kLabel);
  if (has_rates_) {
    page.add(
        fmt::format("{}/s out, {}/s in  ", short_count(rates_.output), short_count(rates_.prompt)));
    page.add(spark_line(output_rates_, kHistory), kGreen);
  } else {
    const double prompt = number_at(state_, "/tokens/prompt");
    page.add(fmt::format("{} out, {} in, of which {:.0f} % were cached, since the start",
                         short_count(number_at(state_, "/tokens/output")),
                         short_count(prompt),
                         100 * number_at(state_, "/tokens/prefix_hit") / std::max(1.0, prompt)));
  }
  page.end_line();
  draw_requests(state_, page);
  return page.text();
}

}  // namespace warprow
