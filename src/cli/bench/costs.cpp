// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_frame.h"
#include "cli/bench/cost_clock.h"
#include "cli/progress_bar.h"
#include "cli/simulate/cost_table.h"
#include "worker/machine_facts.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

struct CostFlags {
  int64_t num_steps = 24;      // measured for each point
  int64_t max_batch_size = 0;  // 0: max_num_seqs
  int64_t context_len = 512;   // of the longer of two contexts
  int64_t request_us = 0;
};

constexpr int64_t kShortContext = 16;
// Kernels take tokens in groups of 8 or more, so costs jump between groups. Counts on both sides of a jump are measured,
// such as 8 and 9.
constexpr int64_t kCounts[] = {1,  2,  4,  6,   8,   9,   12,  16,  17,  24,   32,   33,   48,
                               64, 65, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192};
constexpr int64_t kSlopeBatches[] = {1, 4, 16, 64, 256};

// Up to `most`, which is in it.
std::vector<int64_t> counts_up_to(std::span<const int64_t> counts, int64_t most) {
  std::vector<int64_t> out;
  std::copy_if(counts.begin(), counts.end(), std::back_inserter(out), [most](int64_t count) {
    return count < most;
  });
  out.push_back(most);
  return out;
}

// Measures the points of a table, one load after the other.
class CostRun {
 public:
  CostRun(Engine& engine, TimedSteps& steps, const CostFlags& flags)
      : engine_(engine), steps_(steps), flags_(flags), facts_(engine.model_facts()) {}

  Result<CostTable> run() {
    CostTable table;
    const EngineClock::time_point start = EngineClock::now();
    return measure_prefill(table).and_then([&] { return measure_decode(table); }).map([&] {
      table.host_us = planning_us(start);
      return table;
    });
  }

 private:
  // The median time in which a step is planned.
  [[nodiscard]] double planning_us(EngineClock::time_point start) const {
    std::vector<double> us;
    for (const StepTrace& step : engine_.steps().since(start)) {
      us.push_back(std::chrono::duration<double, std::micro>(step.launched - step.planned).count());
    }
    return us.empty() ? 0 : percentile(us, 50);
  }

  using Keep = std::function<bool(const StepLoad&)>;

  // The median time of the steps of a load that `keep` keeps, and the mean of their loads.
  struct Point {
    double us = 0;
    double context = 0;
    double pairs = 0;
  };
  Result<Point> measure(const BenchLoad& load, int64_t repeats, const Keep& keep) {
    BenchRun bench(engine_, load);
    std::vector<double> us;
    Point point;
    for (int64_t i = 0; i < repeats + 1; ++i) {  // the first warms up
      steps_.take();
      if (const Result<double> ran = bench.run(); !ran) {
        return tl::unexpected(ran.error());
      }
      for (const TimedStep& step : steps_.take()) {
        if (i > 0 && keep(step.load)) {
          us.push_back(step.us);
          point.context += static_cast<double>(step.load.decode_context);
          point.pairs += static_cast<double>(step.load.prefill_pairs);
        }
      }
    }
    if (us.empty()) {
      return fail(ErrorCode::kInternal,
                  fmt::format("no step computed {} prompts of {} tokens and nothing else",
                              load.num_prompts,
                              load.input_len));
    }
    point.context /= static_cast<double>(us.size());
    point.pairs /= static_cast<double>(us.size());
    point.us = percentile(us, 50);
    progress_.update(++num_done_, 0);
    return point;
  }

  // Prompts that one step takes whole.
  Result<void> measure_prefill(CostTable& table) {
    const int64_t most = std::min<int64_t>(facts_.max_num_batched_tokens, facts_.max_model_len - 1);
    std::vector<std::pair<int64_t, Point>> points;
    for (const int64_t count : counts_up_to(kCounts, most)) {
      const Result<Point> point =
          measure({.input_len = count, .output_len = 1, .num_prompts = 1},
                  flags_.num_steps,
                  [count](const StepLoad& load) { return load.num_toks == count; });
      if (!point) {
        return tl::unexpected(point.error());
      }
      points.emplace_back(count, *point);
    }
    if (Result<void> deep = measure_pairs(table, most); !deep) {
      return deep;
    }
    std::vector<CostCurve::Point> curve;
    curve.reserve(points.size());
    for (const auto& [count, point] : points) {
      curve.push_back({static_cast<double>(count),
                       std::max(0.0, point.us - 1e-3 * table.prefill_pair_ns * point.pairs)});
    }
    table.prefill_us = CostCurve(std::move(curve));
    return {};
  }

  // From chunks of one prompt: the first, and those behind more than four. None yields a token.
  Result<void> measure_pairs(CostTable& table, int64_t most) {
    const int64_t len = std::min<int64_t>(8 * most, facts_.max_model_len - 1);
    if (len < 6 * most) {
      return {};
    }
    const BenchLoad load{.input_len = len, .output_len = 1, .num_prompts = 1};
    const int64_t repeats = std::max<int64_t>(flags_.num_steps / 8, 2);
    const auto is_chunk = [most](const StepLoad& step) {
      return step.num_toks == most && step.num_logits == 0;
    };
    const Result<Point> first = measure(load, repeats, [&](const StepLoad& step) {
      return is_chunk(step) && step.prefill_pairs < most * most;
    });
    const Result<Point> deep =
        first ? measure(load,
                        repeats,
                        [&](const StepLoad& step) {
                          return is_chunk(step) && step.prefill_pairs > 4 * most * most;
                        })
              : first;
    return deep.map([&](const Point& point) {
      table.prefill_pair_ns =
          std::max(0.0, 1e3 * (point.us - first->us) / (point.pairs - first->pairs));
    });
  }

  Result<Point> measure_batch(int64_t batch, int64_t context) {
    const auto is_whole = [batch](const StepLoad& load) {
      return load.num_decode_rows == batch && load.num_toks == batch;
    };
    // All rows must decode in as many steps; the first begin while the last prompts are computed.
    const int64_t prompt_steps =
        batch * context / std::max<int64_t>(1, facts_.max_num_batched_tokens - batch) + 2;
    return measure(
        {.input_len = context, .output_len = flags_.num_steps + prompt_steps, .num_prompts = batch},
        1,
        is_whole);
  }

  Result<void> measure_decode(CostTable& table) {
    const int64_t most = flags_.max_batch_size > 0
                             ? std::min<int64_t>(flags_.max_batch_size, facts_.max_num_seqs)
                             : facts_.max_num_seqs;
    const int64_t block = facts_.kv.groups.front().block_size;
    std::vector<CostCurve::Point> slopes;
    for (const int64_t batch : counts_up_to(kSlopeBatches, most)) {
      // What the cache holds, with the tokens that are generated meanwhile.
      const int64_t room = (facts_.kv.num_blocks - 1) / batch * block - 8 * flags_.num_steps;
      const int64_t context =
          std::min({flags_.context_len, room, facts_.max_model_len - 4 * flags_.num_steps - 64});
      if (context < 4 * kShortContext) {
        continue;
      }
      const Result<Point> near = measure_batch(batch, kShortContext);
      const Result<Point> far = near ? measure_batch(batch, context) : near;
      if (!far) {
        return tl::unexpected(far.error());
      }
      slopes.push_back(
          {static_cast<double>(batch),
           std::max(0.0, 1e3 * (far->us - near->us) / (far->context - near->context))});
    }
    if (slopes.empty()) {
      slopes.push_back({1, 0});
    }
    table.decode_context_ns = CostCurve(std::move(slopes));
    std::vector<CostCurve::Point> curve;
    for (const int64_t batch : counts_up_to(kCounts, most)) {
      const Result<Point> point = measure_batch(batch, kShortContext);
      if (!point) {
        return tl::unexpected(point.error());
      }
      const auto rows = static_cast<double>(batch);
      const double attention_us = 1e-3 * point->context * table.decode_context_ns.at(rows);
      // Attention to so few tokens is a small part of a step. A slope that a disturbed step made too steep would say more.
      curve.push_back({rows, std::max(0.5 * point->us, point->us - attention_us)});
    }
    table.decode_us = CostCurve(std::move(curve));
    return {};
  }

  Engine& engine_;
  TimedSteps& steps_;
  const CostFlags& flags_;
  const ModelFacts& facts_;
  ProgressBar progress_{0, isatty(STDERR_FILENO) == 1};
  int64_t num_done_ = 0;
};

std::string machine_name(const EngineConfig& config) {
  const MachineFacts machine = this_machine(config.device);
  if (config.device != "cpu" && machine.gpu.kind == DeviceKind::kCuda) {
    return machine.gpu.name;
  }
  return fmt::format("CPU, {} threads", config.threads > 0 ? config.threads : machine.usable_cores);
}

std::string table_text(const CostTable& table) {
  const auto curve = [](const char* name, const CostCurve& points, const char* unit) {
    std::string text = fmt::format("\n\n{}", name);
    for (const CostCurve::Point& point : points.points()) {
      text += fmt::format("\n{:>8}{:>12.1f} {}", point.count, point.value, unit);
    }
    return text;
  };
  std::string text = fmt::format("{} on {}", table.model, table.machine);
  text += curve("a step by tokens", table.prefill_us, "us");
  text += curve("a step by decoding rows", table.decode_us, "us");
  text += curve("attention of decoding rows, by rows", table.decode_context_ns, "ns a token");
  text += fmt::format("\n\nattention of prompts {:.3f} ns a pair; host {:.1f} us a step that waits",
                      table.prefill_pair_ns,
                      table.host_us);
  return text;
}

}  // namespace

Result<ExitCode> run_bench_costs(const Arguments& arguments) {
  BenchFrame frame("bench costs",
                   "measures how long steps take; --output-json writes the table for `warprow "
                   "simulate --costs`");
  CostFlags flags;
  frame.add_count("num-steps", "measured steps for each point", flags.num_steps);
  frame.add_count("max-batch-size", "decoding rows at most; 0: max-num-seqs", flags.max_batch_size);
  frame.add_count(
      "context-len", "tokens of the longer context that is measured", flags.context_len);
  frame.add_count("request-us",
                  "to be added to a request's arrival and to each of its tokens, in microseconds",
                  flags.request_us);
  const auto begun = frame.begin(arguments);
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (auto checked =
          check_counts({flags.num_steps, flags.context_len}, "num-steps and context-len");
      !checked) {
    return tl::unexpected(checked.error());
  }
  EngineConfig config = frame.config();
  config.long_prefill_token_threshold = 0;  // prompts are computed whole
  TimedSteps steps;
  Result<CostTable> table = CostTable();
  {
    const std::unique_ptr<Engine> engine =
        load_engine(config, [&steps](std::unique_ptr<Executor> executor) {
          return make_cost_clock(std::move(executor), steps);
        });
    table = CostRun(*engine, steps, flags).run();
  }
  if (!table) {
    return tl::unexpected(table.error());
  }
  table->model = config.model;
  table->machine = machine_name(config);
  table->request_us = static_cast<double>(flags.request_us);
  return frame.report(cost_table_json(*table), table_text(*table));
}

}  // namespace warprow
