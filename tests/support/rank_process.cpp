// SPDX-License-Identifier: Apache-2.0
// The rank process of tests, in place of the program itself. WR_RANK_FAULT makes a rank fail: "FAULT RANK", with
//   start    ends before it has done anything
//   loading  throws when it has loaded
//   throw    throws in step 3
//   stuck    does not return from step 3
//   killed   is killed in step 3, while the other ranks wait for it
//   differs  says in step 3 that a token was sampled
// With the arguments `launched NAME=VALUE...` it is a rank other than 0 that a launcher started, with these settings.
#include "base/error.h"
#include "config/fields.h"
#include "executor/executor_wrapper.h"
#include "executor/external/external_rank.h"
#include "executor/external/launch.h"
#include "executor/mp/rank_main.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace warprow {
namespace {

constexpr int64_t kFaultyStep = 3;

class FaultyRank final : public ExecutorWrapper {
 public:
  FaultyRank(std::string fault, std::unique_ptr<Executor> inner)
      : ExecutorWrapper(std::move(inner)), fault_(std::move(fault)) {}

  void execute_model(const SchedulerOutput& step) override {
    if (step.step == kFaultyStep) {
      fail();
    }
    ExecutorWrapper::execute_model(step);
  }

  void take_output(ModelRunnerOutput& output) override {
    ExecutorWrapper::take_output(output);
    if (fault_ == "differs" && output.step == kFaultyStep) {
      output.token_ids.push_back(7);
    }
  }

 private:
  void fail() const {
    if (fault_ == "throw") {
      throw std::runtime_error("this step is refused");
    }
    if (fault_ == "stuck") {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
    if (fault_ == "killed") {
      ::kill(::getpid(), SIGKILL);
    }
  }

  std::string fault_;
};

// What WR_RANK_FAULT says of this rank; empty: nothing.
std::string fault_of(int32_t rank) {
  const char* const text = std::getenv("WR_RANK_FAULT");
  std::istringstream words(text != nullptr ? text : "");
  std::string fault;
  int32_t faulty = -1;
  words >> fault >> faulty;
  return faulty == rank ? fault : "";
}

WrapRank wrap_with(const std::string& fault) {
  if (fault.empty()) {
    return {};
  }
  return [fault](std::unique_ptr<Executor> executor) {
    if (fault == "loading") {
      throw std::runtime_error("these weights are refused");
    }
    return std::make_unique<FaultyRank>(fault, std::move(executor));
  };
}

constexpr int kFailsAtStart = 7;

int run(const RankArguments& arguments) {
  const std::string fault = fault_of(arguments.rank);
  return fault == "start" ? kFailsAtStart : rank_main(arguments, wrap_with(fault));
}

int run_launched(const std::vector<std::string>& settings) {
  try {
    EngineConfig config;
    for (const std::string& setting : settings) {
      const size_t end = setting.find('=');
      const std::string name = setting.substr(0, end);
      value_or_throw(set_field(config, *find_field(name), setting.substr(end + 1), name));
    }
    const Launch launch = value_or_throw(read_launch());
    const std::string fault = fault_of(launch.rank);
    if (fault == "start") {
      return kFailsAtStart;
    }
    run_external_rank(config, launch, wrap_with(fault));
    return 0;
  } catch (const StartupError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 5;
  }
}

}  // namespace
}  // namespace warprow

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words.front() == "launched") {
    return warprow::run_launched({words.begin() + 1, words.end()});
  }
  const auto rank = warprow::RankArguments::parse(words);
  return rank ? warprow::run(*rank) : 2;
}
