// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cublaslt/plans.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <tuple>
#include <unistd.h>

#include <fmt/format.h>

namespace warprow::cuda {
namespace {

auto order_of(const LtPlanKey& key) {
  const LtProduct& p = key.product;
  return std::make_tuple(p.n, p.k, p.y_f32, p.accumulate, p.batch_invariant, key.range);
}

bool before(const LtPlan& a, const LtPlanKey& b) { return order_of(a.key) < order_of(b); }

bool read_plan(std::istream& in, LtPlan& plan) {
  LtProduct& p = plan.key.product;
  in >> std::dec >> p.n >> p.k >> p.y_f32 >> p.accumulate >> p.batch_invariant >> plan.key.range;
  for (uint64_t& word : plan.algo.data) {
    in >> std::hex >> word;
  }
  return static_cast<bool>(in);
}

}  // namespace

LtPlanTable LtPlanTable::read(const std::string& file, size_t version) {
  LtPlanTable out;
  std::ifstream in(file);
  size_t written_by = 0;
  if (!(in >> written_by) || written_by != version) {
    return out;
  }
  LtPlan plan = {};
  while (read_plan(in, plan)) {
    out.insert(plan);
  }
  return out;
}

bool LtPlanTable::write(const std::string& file, size_t version) const {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), error);
  const std::string part = fmt::format("{}.{}", file, getpid());
  {
    std::ofstream out(part);
    out << version << '\n';
    for (const LtPlan& plan : plans_) {
      const LtProduct& p = plan.key.product;
      out << fmt::format("{} {} {:d} {:d} {:d} {}",
                         p.n,
                         p.k,
                         p.y_f32,
                         p.accumulate,
                         p.batch_invariant,
                         plan.key.range);
      for (const uint64_t word : plan.algo.data) {
        out << fmt::format(" {:x}", word);
      }
      out << '\n';
    }
    if (!out) {
      return false;
    }
  }
  std::filesystem::rename(part, file, error);  // readers see the old file or the new one
  return !error;
}

const LtPlan* LtPlanTable::find(const LtPlanKey& key) const {
  const auto at = std::lower_bound(plans_.begin(), plans_.end(), key, before);
  return at != plans_.end() && order_of(at->key) == order_of(key) ? &*at : nullptr;
}

const LtPlan& LtPlanTable::insert(const LtPlan& plan) {
  const auto at = std::lower_bound(plans_.begin(), plans_.end(), plan.key, before);
  if (at != plans_.end() && order_of(at->key) == order_of(plan.key)) {
    *at = plan;
    return *at;
  }
  return *plans_.insert(at, plan);
}

std::string lt_plan_file(const std::string& gpu) {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string cache = "/tmp";
  if (xdg != nullptr && *xdg != '\0') {
    cache = xdg;
  } else if (home != nullptr) {
    cache = std::string(home) + "/.cache";
  }
  std::string name = gpu;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) {
      c = '-';
    }
  }
  return fmt::format("{}/warprow/cublaslt/{}.txt", cache, name);
}

}  // namespace warprow::cuda
