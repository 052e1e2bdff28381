// SPDX-License-Identifier: Apache-2.0
// The rank process of tests, in place of the program itself. WR_RANK_FAULT makes a rank fail: "FAULT RANK", with
//   start    ends before it has done anything
//   loading  throws when it has loaded
//   throw    throws in step 3
//   stuck    does not return from step 3
//   killed   is killed in step 3, while the other ranks wait for it
#include "executor/executor_wrapper.h"
#include "executor/mp/rank_main.h"

#include <csignal>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

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

int run(const RankArguments& arguments) {
  const char* const text = std::getenv("WR_RANK_FAULT");
  std::istringstream words(text != nullptr ? text : "");
  std::string fault;
  int32_t rank = -1;
  words >> fault >> rank;
  if (rank != arguments.rank) {
    return rank_main(arguments);
  }
  if (fault == "start") {
    return 7;
  }
  return rank_main(arguments, [&fault](std::unique_ptr<Executor> executor) {
    if (fault == "loading") {
      throw std::runtime_error("these weights are refused");
    }
    return std::make_unique<FaultyRank>(fault, std::move(executor));
  });
}

}  // namespace
}  // namespace warprow

int main(int argc, char** argv) {
  const auto rank = warprow::RankArguments::parse({argv + 1, argv + argc});
  return rank ? warprow::run(*rank) : 2;
}
