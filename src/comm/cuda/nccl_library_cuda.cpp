// SPDX-License-Identifier: Apache-2.0
#include "comm/cuda/nccl_library.h"

#include "base/check.h"
#include "base/error.h"

#include <cstdlib>
#include <dlfcn.h>
#include <glob.h>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow::cuda {
namespace {

constexpr const char* kFile = "libnccl.so.2";
constexpr int kLeastVersion = 22800;

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void add_matches(std::vector<std::string>& out, const std::string& pattern) {
  glob_t found = {};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      out.emplace_back(found.gl_pathv[i]);
    }
  }
  ::globfree(&found);
}

std::vector<std::string> candidates() {
  std::vector<std::string> out;
  if (std::string named = env("WARPROW_NCCL"); !named.empty()) {
    out.push_back(std::move(named));
    return out;
  }
  out.emplace_back(kFile);
  std::vector<std::string> pythons = {env("HOME") + "/.local/lib/python3*/site-packages",
                                      "/opt/*/lib/python3*/site-packages",
                                      "/opt/*/.venv/lib/python3*/site-packages",
                                      "/usr/local/lib/python3*/*-packages",
                                      "/usr/lib/python3*/*-packages"};
  if (const std::string venv = env("VIRTUAL_ENV"); !venv.empty()) {
    pythons.insert(pythons.begin(), venv + "/lib/python3*/site-packages");
  }
  for (const std::string& python : pythons) {
    add_matches(out, python + "/nvidia/nccl/lib/" + kFile);
  }
  return out;
}

void* open_library(std::string& path) {
  std::vector<std::string> failures;
  for (const std::string& candidate : candidates()) {
    if (void* library = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      path = candidate;
      return library;
    }
    const char* why = ::dlerror();
    failures.push_back(why == nullptr ? candidate : why);
  }
  throw StartupError(
      ErrorCode::kNotFound,
      fmt::format("NCCL is needed and was not found. Tried: {}. Install it or the Python package "
                  "nvidia-nccl-cu13, or name the file in WARPROW_NCCL",
                  fmt::join(failures, "; ")));
}

template <typename F>
void find(F& function, void* library, const char* name, const std::string& path) {
  void* entry = ::dlsym(library, name);
  if (entry == nullptr) {
    throw StartupError(ErrorCode::kUnsupported, fmt::format("{} lacks {}", path, name));
  }
  function = reinterpret_cast<F>(entry);
}

Nccl find_all() {
  // It reads its environment at its first call.
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  Nccl found{};
  void* const library = open_library(found.path);
  const auto look_up = [&](auto& function, const char* name) {
    find(function, library, name, found.path);
  };
  look_up(found.get_version, "ncclGetVersion");
  look_up(found.error_string, "ncclGetErrorString");
  look_up(found.get_id, "ncclGetUniqueId");
  look_up(found.init_rank, "ncclCommInitRank");
  look_up(found.destroy, "ncclCommDestroy");
  look_up(found.abort, "ncclCommAbort");
  look_up(found.all_reduce, "ncclAllReduce");
  look_up(found.all_gather, "ncclAllGather");
  look_up(found.broadcast, "ncclBroadcast");
  look_up(found.send, "ncclSend");
  look_up(found.receive, "ncclRecv");
  look_up(found.group_start, "ncclGroupStart");
  look_up(found.group_end, "ncclGroupEnd");
  int version = 0;
  if (found.get_version(&version) != 0 || version < kLeastVersion) {
    throw StartupError(ErrorCode::kUnsupported,
                       fmt::format("{} is NCCL {}.{}; 2.28 or newer is needed",
                                   found.path,
                                   version / 10000,
                                   version / 100 % 100));
  }
  return found;
}

}  // namespace

const Nccl& nccl() {
  static const Nccl found = find_all();
  return found;
}

void check_nccl(int result, const char* call) {
  WR_CHECK(result == 0, "{}: {}", call, nccl().error_string(result));
}

}  // namespace warprow::cuda
