// SPDX-License-Identifier: Apache-2.0
#include "files/gguf_set.h"

#include "files/printable.h"

#include <charconv>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr std::string_view kExtension = ".gguf";
constexpr std::string_view kOf = "-of-";
constexpr size_t kDigits = 5;

std::optional<int> read_digits(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0
             ? std::optional(value)
             : std::nullopt;
}

}  // namespace

std::optional<GgufPart> parse_gguf_part(std::string_view file) {
  constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits + kExtension.size();
  if (file.size() <= kTail || !file.ends_with(kExtension)) {
    return std::nullopt;
  }
  const std::string_view tail = file.substr(file.size() - kTail);
  const auto number = read_digits(tail.substr(1, kDigits));
  const auto count = read_digits(tail.substr(1 + kDigits + kOf.size(), kDigits));
  if (tail.front() != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf || !number || !count ||
      *number > *count) {
    return std::nullopt;
  }
  return GgufPart{std::string(file.substr(0, file.size() - kTail)), *number, *count};
}

std::string gguf_part_name(const GgufPart& part, int number) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", part.stem, number, part.count);
}

bool is_later_gguf_part(std::string_view file) {
  const std::optional<GgufPart> part = parse_gguf_part(file);
  return part && part->number > 1;
}

Result<GgufSet> GgufSet::open(const std::string& path) {
  Result<GgufFile> first = GgufFile::open(path);
  if (!first) {
    return tl::unexpected(std::move(first).error());
  }
  const Result<int64_t> count = first->get_or<int64_t>("split.count", 1);
  if (!count) {
    return tl::unexpected(count.error());
  }
  GgufSet set;
  set.files_.push_back(*std::move(first));
  if (*count <= 1) {
    return set;
  }
  if (Result<void> done = set.add_parts(*count); !done) {
    return tl::unexpected(std::move(done).error());
  }
  return set.check_parts().map([&] { return std::move(set); });
}

Result<void> GgufSet::add_parts(int64_t count) {
  const std::string& path = files_.front().name();
  const std::optional<GgufPart> part = parse_gguf_part(path);
  if (!part || part->count != count) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is one of {} parts, which are found by names such as "
                            "model-00001-of-{:05}.gguf",
                            path,
                            count,
                            count));
  }
  if (part->number != 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is part {} of {}: name the first one, '{}'",
                            path,
                            part->number,
                            count,
                            gguf_part_name(*part, 1)));
  }
  for (int number = 2; number <= part->count; ++number) {
    Result<GgufFile> file = GgufFile::open(gguf_part_name(*part, number));
    if (!file) {
      return tl::unexpected(std::move(file).error());
    }
    files_.push_back(*std::move(file));
  }
  return {};
}

Result<void> GgufSet::check_parts() const {
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < files_.size(); ++i) {
    const GgufFile& file = files_[i];
    const Result<int64_t> number = file.get_or<int64_t>("split.no", -1);
    const Result<int64_t> count = file.get_or<int64_t>("split.count", -1);
    if (!number || !count || std::cmp_not_equal(*number, i) ||
        std::cmp_not_equal(*count, files_.size())) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("'{}' does not say that it is part {} of {} (split.no, split.count)",
                              file.name(),
                              i + 1,
                              files_.size()));
    }
    for (const GgufTensor& tensor : file.tensors()) {
      if (!names.insert(tensor.name).second) {
        return fail(
            ErrorCode::kCorrupt,
            fmt::format(
                "'{}': tensor {} is in a part before it too", file.name(), printable(tensor.name)));
      }
    }
  }
  const auto total = static_cast<int64_t>(names.size());
  const Result<int64_t> wanted = files_.front().get_or<int64_t>("split.tensors.count", total);
  if (!wanted || *wanted != total) {
    return fail(ErrorCode::kCorrupt,
                fmt::format("'{}' and its other parts hold {} tensors, not split.tensors.count",
                            files_.front().name(),
                            total));
  }
  return {};
}

}  // namespace warprow
