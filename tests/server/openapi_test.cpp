// SPDX-License-Identifier: Apache-2.0
// The table of routes in server/api.cpp and web/openapi.json name the same methods and paths.
#include "tests/support/source_path.h"

#include <cctype>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using ::testing::IsEmpty;

std::string text_of(const std::string& path) {
  std::ifstream file(test::source_path(path));
  return {std::istreambuf_iterator<char>(file), {}};
}

// What stands between the first `before` and the next `after`.
std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const size_t begin = text.find(before);
  const size_t end = begin == text.npos ? begin : text.find(after, begin + before.size());
  return end == text.npos ? std::string_view{}
                          : text.substr(begin + before.size(), end - begin - before.size());
}

// Without the pages and the endpoints that need a flag.
// gcc 12 warns inside of std::regex when it builds with sanitizers, so the rows are cut by hand.
std::set<std::string> routes() {
  const std::string source = text_of("src/server/api.cpp");
  constexpr std::string_view kRow = "{.method = ";
  std::set<std::string> found;
  for (size_t at = source.find(kRow); at != source.npos; at = source.find(kRow, at + 1)) {
    const std::string_view row = between(std::string_view(source).substr(at), "{", "\n");
    const std::string_view path = between(row, ".path = \"", "\"");
    const bool needs_flag = row.find(".dev = true") != row.npos || row.find(".flag = ") != row.npos;
    if (path != "/" && path != "/docs" && path != "/dashboard" && !needs_flag) {
      found.insert(fmt::format("{} {}", between(row, ".method = \"", "\""), path));
    }
  }
  return found;
}

std::set<std::string> less(std::set<std::string> from, const std::set<std::string>& what) {
  std::erase_if(from, [&](const std::string& name) { return what.contains(name); });
  return from;
}

TEST(OpenApi, HasEveryPath) {
  std::set<std::string> described;
  const auto api = nlohmann::json::parse(text_of("src/server/web/openapi.json"));
  for (const auto& [path, methods] : api["paths"].items()) {
    for (const auto& entry : methods.items()) {
      std::string method = entry.key();
      for (char& letter : method) {
        letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
      }
      described.insert(method + " " + path);
    }
  }
  const std::set<std::string> routed = routes();
  ASSERT_GT(routed.size(), 10U);
  EXPECT_THAT(less(routed, described), IsEmpty()) << "routes that openapi.json lacks";
  EXPECT_THAT(less(described, routed), IsEmpty()) << "paths that are no routes";
}

}  // namespace
}  // namespace warprow
