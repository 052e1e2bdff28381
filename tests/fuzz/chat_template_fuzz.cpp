// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: for every template and every set of variables, a worker process answers with a text or a one-line
// error within its limits, and then renders the next template.
#include "base/check.h"
#include "tests/fuzz/extra_counters.h"
#include "tests/fuzz/sections.h"
#include "text/helper_entry.h"
#include "text/textkit_call.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace warprow {
namespace {

constexpr wr_template_limits kLimits = {.cpu_ms = 300, .memory_mb = 128, .output_mb = 4};
// Wall-clock limit. A busy machine needs far more than kLimits.cpu_ms.
constexpr std::chrono::seconds kMostTime{5};
constexpr std::string_view kUsualContext =
    R"({"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi \u00e9"},)"
    R"( {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f",)"
    R"( "arguments": {"a": [1, 2.5, null]}}}]}, {"role": "tool", "content": "1"}],)"
    R"( "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "documents": null,)"
    R"( "add_generation_prompt": true, "eos_token": "</s>"})";

constexpr std::string_view kWords[] = {"for",
                                       "endfor",
                                       "if",
                                       "elif",
                                       "else",
                                       "endif",
                                       "set",
                                       "endset",
                                       "macro",
                                       "endmacro",
                                       "call",
                                       "endcall",
                                       "filter",
                                       "endfilter",
                                       "with",
                                       "endwith",
                                       "do",
                                       "break",
                                       "continue",
                                       "generation",
                                       "endgeneration",
                                       "namespace",
                                       "raise_exception",
                                       "strftime_now",
                                       "range",
                                       "loop",
                                       "index0",
                                       "previtem",
                                       "nextitem",
                                       "last",
                                       "first",
                                       "in",
                                       "not",
                                       "and",
                                       "or",
                                       "is",
                                       "defined",
                                       "none",
                                       "string",
                                       "sequence",
                                       "iterable",
                                       "number",
                                       "mapping",
                                       "messages",
                                       "role",
                                       "content",
                                       "tools",
                                       "tojson",
                                       "indent",
                                       "sort_keys",
                                       "ensure_ascii",
                                       "separators",
                                       "from_json",
                                       "trim",
                                       "strip",
                                       "lstrip",
                                       "rstrip",
                                       "split",
                                       "rsplit",
                                       "partition",
                                       "rpartition",
                                       "join",
                                       "find",
                                       "rfind",
                                       "index",
                                       "rindex",
                                       "ljust",
                                       "rjust",
                                       "removeprefix",
                                       "removesuffix",
                                       "upper",
                                       "title",
                                       "replace",
                                       "startswith",
                                       "endswith",
                                       "items",
                                       "keys",
                                       "values",
                                       "get",
                                       "length",
                                       "list",
                                       "map",
                                       "select",
                                       "selectattr",
                                       "rejectattr",
                                       "attribute",
                                       "sort",
                                       "unique",
                                       "groupby",
                                       "batch",
                                       "slice",
                                       "reverse",
                                       "sum",
                                       "max",
                                       "min",
                                       "round",
                                       "int",
                                       "float",
                                       "abs",
                                       "default",
                                       "safe",
                                       "escape",
                                       "urlencode",
                                       "format",
                                       "dict",
                                       "cycler",
                                       "joiner",
                                       "pprint",
                                       "recursive"};

struct Tried {
  int failed = 0;
  std::string text;  // the text, or the error
};

Tried try_template(std::string_view source, std::string_view context) {
  TextkitOwned text;
  TextkitOwned error;
  const int failed =
      wr_template_try(to_textkit(source), to_textkit(context), kLimits, text.out(), error.out());
  return {failed, failed != 0 ? error.str() : text.str()};
}

// minijinja 2.24 panics on ''[::-1], a slice of an empty string or list with a negative step.
constexpr std::string_view kKnownPanic = "the len is 0 but the index is 0";

void check_template(std::string_view source, std::string_view context) {
  const auto start = std::chrono::steady_clock::now();
  const Tried tried = try_template(source, context);
  WR_CHECK(std::chrono::steady_clock::now() - start < kMostTime);
  // A panic is a bug, although the worker process contains it.
  const bool known_panic = tried.failed == WR_PANIC && tried.text.ends_with(kKnownPanic);
  WR_CHECK(tried.failed == 0 || tried.failed == WR_INVALID || known_panic, "{}", tried.text);
  if (tried.failed == 0) {
    WR_CHECK(tried.text.size() <= size_t{kLimits.output_mb} << 20);
    count_words(source, kWords);
  } else {
    WR_CHECK(!tried.text.empty());
    count_error(tried.text);
  }
}

void check_next() {
  const Tried tried =
      try_template("{% for m in messages %}{{ m.role }};{% endfor %}", kUsualContext);
  WR_CHECK(tried.failed == 0 && tried.text == "system;user;assistant;tool;", "{}", tried.text);
}

}  // namespace
}  // namespace warprow

// The input is a template, optionally followed by its variables.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  warprow::link_helper_entry();
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view source = warprow::take_section(rest);
  warprow::check_template(source, rest.empty() ? warprow::kUsualContext : rest);
  if (size % 64 == 0) {
    warprow::check_next();
  }
  return 0;
}
