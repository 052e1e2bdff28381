// SPDX-License-Identifier: Apache-2.0
// The table of routes in server/api.cpp and web/openapi.json name the same methods and paths.
#include "tests/support/source_path.h"

#include <cctype>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

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

// Without the page at / and the endpoints of --server-dev-mode.
std::set<std::string> routes() {
  const std::string source = text_of("src/server/api.cpp");
  const std::regex row(R"re(\{\.method = "(\w+)", \.path = "([^"]+)"([^}]*)\})re");
  std::set<std::string> found;
  for (std::sregex_iterator it(source.begin(), source.end(), row), end; it != end; ++it) {
    if ((*it)[2] != "/" && (*it)[3].str().find(".dev = true") == std::string::npos) {
      found.insert((*it)[1].str() + " " + (*it)[2].str());
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
