// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/cublaslt/library.h"

#include "base/error.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <glob.h>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace warprow::cuda {
namespace {

constexpr const char* kSonames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void add_matches(std::vector<std::string>& out, const std::string& pattern) {
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      out.emplace_back(found.gl_pathv[i]);
    }
  }
  globfree(&found);
}

std::vector<std::string> folders() {
  std::vector<std::string> out;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    out.push_back(self.parent_path().string());
    out.push_back((self.parent_path() / ".." / "lib").string());
  }
  if (const std::string cuda = env("CUDA_HOME"); !cuda.empty()) {
    out.push_back(cuda + "/lib64");
  }
  out.emplace_back("/usr/local/cuda/lib64");
  const std::string home = env("HOME");
  const std::string xdg = env("XDG_CACHE_HOME");
  const std::string cache = xdg.empty() ? home + "/.cache" : xdg;
  out.push_back(cache + "/warprow/deps/*/nvidia/*/lib");
  std::vector<std::string> pythons;
  if (const std::string venv = env("VIRTUAL_ENV"); !venv.empty()) {
    pythons.push_back(venv + "/lib/python3*/site-packages");
  }
  pythons.push_back(home + "/.local/lib/python3*/site-packages");
  pythons.emplace_back("/opt/*/lib/python3*/site-packages");
  pythons.emplace_back("/opt/*/.venv/lib/python3*/site-packages");
  pythons.emplace_back("/usr/local/lib/python3*/*-packages");
  pythons.emplace_back("/usr/lib/python3*/*-packages");
  for (const std::string& python : pythons) {
    out.push_back(python + "/nvidia/cu13/lib");
    out.push_back(python + "/nvidia/cublas/lib");
  }
  return out;
}

}  // namespace

std::vector<std::string> cublaslt_candidates() {
  std::vector<std::string> out;
  if (std::string named = env("WARPROW_CUBLASLT"); !named.empty()) {
    out.push_back(std::move(named));
  }
  for (const char* soname : kSonames) {
    out.emplace_back(soname);
  }
  for (const std::string& folder : folders()) {
    for (const char* soname : kSonames) {
      add_matches(out, folder + "/" + soname);
    }
  }
  return out;
}

void* open_cublaslt(std::string& path) {
  std::vector<std::string> failures;
  for (const std::string& candidate : cublaslt_candidates()) {
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      path = candidate;
      return library;
    }
    const char* why = dlerror();
    failures.push_back(why == nullptr ? candidate : why);
  }
  throw StartupError(
      ErrorCode::kNotFound,
      fmt::format(
          "cuBLASLt is needed and was not found. Tried: {}. Looked into: {}. Install CUDA's "
          "libraries or the Python package nvidia-cublas, or name the file in "
          "WARPROW_CUBLASLT",
          fmt::join(failures, "; "),
          fmt::join(folders(), ", ")));
}

}  // namespace warprow::cuda
