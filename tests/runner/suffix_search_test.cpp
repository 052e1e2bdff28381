// SPDX-License-Identifier: Apache-2.0
#include "runner/drafts/suffix_search.h"

#include "tests/runner/paged_text.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Ints = std::vector<int32_t>;

constexpr int32_t kSuffixPageShift = 3;
constexpr int32_t kMaxRows = 4;

// An index in memory of its own.
class Index {
 public:
  Index(int32_t max_requests, int32_t max_len, uint32_t first_place = 0)
      : memory_(size_t{1} << 20),
        arena_(ArenaPurpose::kState, memory_.data(), memory_.size(), {}),
        index(arena_, kMaxRows, max_requests, max_len) {
    index.counters()->next = first_place;
  }

  void begin(int32_t row) { index.begin_request(row); }
  void add(int32_t row, const Ints& tokens) {
    for (const int32_t token : tokens) {
      index.add(row, token);
    }
  }
  void request(int32_t row, const Ints& tokens) {
    begin(row);
    add(row, tokens);
  }

 private:
  std::vector<std::byte> memory_;
  Arena arena_;

 public:
  OutputIndex index;
};

// The drafts for a row with these tokens, its prompt in host memory and all else on the device.
Ints propose_suffix(const Ints& tokens,
                    const OutputIndex& outputs,
                    const SuffixSettings& settings = {},
                    int32_t num_drafts = 8,
                    int32_t prefill_len = 0) {
  const auto len = static_cast<int32_t>(tokens.size());
  const test::PagedText text(tokens, prefill_len, kSuffixPageShift);
  Ints drafts(static_cast<size_t>(num_drafts), -9);
  propose_suffix({text.known, 0, prefill_len, len}, outputs, settings, drafts);
  EXPECT_EQ(std::ranges::count(drafts, -9), 0);
  const auto none = std::ranges::find(drafts, -1);
  EXPECT_TRUE(std::all_of(none, drafts.end(), [](int32_t d) { return d == -1; }));
  drafts.erase(none, drafts.end());
  return drafts;
}

Ints propose_suffix(const Ints& tokens, const SuffixSettings& settings = {}) {
  return propose_suffix(tokens, OutputIndex(), settings);
}

TEST(SuffixSearch, AsManyDraftsAsTokensMatch) {
  EXPECT_EQ(propose_suffix({1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}), (Ints{4, 5, 6}));
  SuffixSettings twice;
  twice.max_spec_factor = 2;
  EXPECT_EQ(propose_suffix({1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, twice), (Ints{4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(propose_suffix({1, 2, 3}), Ints());
  EXPECT_EQ(propose_suffix({1}), Ints());
}

TEST(SuffixSearch, TheMostFrequentTokenFollows) {
  // "1 2" goes on with 5 twice and with 9 once, and the latest time is 9.
  EXPECT_EQ(propose_suffix({1, 2, 5, 6, 1, 2, 5, 6, 1, 2, 9, 1, 2}), (Ints{5, 6}));
}

// The row's end counts as an occurrence with nothing behind it: of "3" are four, and 3/4 * 1/3 go on with the same token.
TEST(SuffixSearch, DraftsBelowTheLeastProbabilityAreLeftOut) {
  const Ints tokens{3, 7, 3, 8, 3, 9, 3};
  SuffixSettings settings;
  settings.min_token_prob = 0.25;
  EXPECT_EQ(propose_suffix(tokens, settings), (Ints{9})) << "of equal ones the latest";
  settings.min_token_prob = 0.26;
  EXPECT_EQ(propose_suffix(tokens, settings), Ints());
}

TEST(SuffixSearch, TheDepthLimitsMatchAndDraftsTogether) {
  const Ints tokens{1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4};
  SuffixSettings settings;
  settings.max_tree_depth = 5;
  settings.max_spec_factor = 3;
  EXPECT_EQ(propose_suffix(tokens, settings), (Ints{5, 6, 7}))
      << "2 + 3: of equal scores the longest";
  settings.max_tree_depth = 2;
  EXPECT_EQ(propose_suffix(tokens, settings), (Ints{5}));
}

TEST(SuffixSearch, OutputsOfOtherRequests) {
  Index outputs(10, 100);
  outputs.request(0, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(propose_suffix({9, 1, 2, 3}, outputs.index), (Ints{4, 5, 6}));
  EXPECT_EQ(propose_suffix({4, 9, 1, 2, 3, 8, 7, 1, 2, 3}, outputs.index), (Ints{4, 5, 6}))
      << "certain there, and every other time in the row";
  EXPECT_EQ(propose_suffix({6, 1, 2, 3, 8, 7, 0, 1, 2, 3}, OutputIndex()), (Ints{8, 7, 0}));
}

TEST(SuffixSearch, LongOutputsOfRowsInTurn) {
  Index outputs(10, 200);
  Ints texts[2];
  outputs.begin(0);
  outputs.begin(1);
  for (int32_t i = 0; i < 100; ++i) {
    for (const int32_t row : {0, 1}) {
      texts[row].push_back(1000 * (row + 1) + i);
      outputs.add(row, {texts[row].back()});
    }
  }
  for (const Ints& text : texts) {  // across the edges of segments
    for (int32_t at = 20; at < 80; ++at) {
      const Ints end(text.begin() + at - 12, text.begin() + at);
      EXPECT_EQ(propose_suffix(end, outputs.index), Ints(text.begin() + at, text.begin() + at + 8))
          << at;
    }
  }
}

TEST(SuffixSearch, OldRequestsDoNotCount) {
  Index outputs(2, 100);
  outputs.request(0, {1, 2, 3, 4});
  outputs.request(1, {5, 6, 7, 8});
  EXPECT_EQ(propose_suffix({9, 1, 2}, outputs.index), (Ints{3, 4}));
  outputs.begin(2);
  EXPECT_EQ(propose_suffix({9, 1, 2}, outputs.index), Ints()) << "two others began later";
  outputs.add(0, {11, 12, 13});
  EXPECT_EQ(propose_suffix({9, 11, 12}, outputs.index), Ints()) << "nor does what comes later";
  EXPECT_EQ(propose_suffix({9, 5, 6}, outputs.index), (Ints{7, 8}));
}

// A ring of 64 tokens.
TEST(SuffixSearch, TheOldestTokensGo) {
  Index outputs(2, 32);
  ASSERT_EQ(outputs.index.capacity(), 64U);
  Ints text(200);
  outputs.begin(0);
  for (int32_t i = 0; i < 200; ++i) {
    text[static_cast<size_t>(i)] = i;
    outputs.add(0, {i});
  }
  EXPECT_EQ(propose_suffix({500, 150, 151}, outputs.index), Ints()) << "places 160 to 199 are left";
  EXPECT_EQ(propose_suffix({500, 160, 161}, outputs.index), (Ints{162, 163}));
  EXPECT_EQ(propose_suffix({159, 160, 161}, outputs.index), (Ints{162, 163})) << "159 is gone";
  outputs.begin(1);
  outputs.add(1, {700});
  outputs.begin(2);  // the row's own segment is gone once the two others have one each
  outputs.add(2, Ints(33, 800));
  outputs.add(1, {701, 702});
  EXPECT_EQ(propose_suffix({500, 701}, outputs.index), (Ints{702}));
  EXPECT_EQ(propose_suffix({500, 700}, outputs.index), Ints());
}

TEST(SuffixSearch, WithoutRequestsNothingIsStored) {
  Arena none(ArenaPurpose::kState, nullptr, 0, {});
  const OutputIndex index(none, kMaxRows, 0, 1000);
  EXPECT_FALSE(index.is_on());
  EXPECT_EQ(none.used(), 0U);
  EXPECT_EQ(propose_suffix({1, 2, 3, 1, 2}, index), (Ints{3, 1}));
}

TEST(SuffixSearch, MemoryHasALimit) {
  alignas(Arena::kAlignment) std::byte unused{};
  Arena shapes(ArenaPurpose::kState, &unused, size_t{1} << 40, {});
  const OutputIndex index(shapes, 256, 1'000'000, 1 << 20);
  EXPECT_EQ(index.capacity(), uint32_t{OutputIndex::kMaxTokens});
  EXPECT_LT(shapes.used(), size_t{38} << 20);
}

// Thousands of occurrences: the latest of each length count, so the result is the same and takes no longer.
TEST(SuffixSearch, ManyOccurrences) {
  Index outputs(1, 4096);
  outputs.begin(0);
  for (int32_t i = 0; i < 1000; ++i) {
    outputs.add(0, {7, i < 500 ? 1 : 2});
  }
  outputs.begin(0);
  EXPECT_EQ(propose_suffix({9, 7}, outputs.index), Ints()) << "the request does not count any more";
  outputs.add(0, {7, 1, 7, 2, 7, 2});
  EXPECT_EQ(propose_suffix({9, 7}, outputs.index), (Ints{2}));
  EXPECT_EQ(propose_suffix(Ints(320, 4), OutputIndex()), Ints(8, 4));
}

// vllm#52873: drafts end for good once a row is that long.
TEST(SuffixSearch, ARowPast32768Tokens) {
  for (const int32_t len : {32'766, 32'770, 65'540}) {
    Ints tokens(static_cast<size_t>(len));
    std::iota(tokens.begin(), tokens.end(), 0);
    tokens.insert(tokens.end(), {len - 9, len - 8, len - 7});
    EXPECT_EQ(propose_suffix(tokens, OutputIndex(), {}, 8, len / 2),
              (Ints{len - 6, len - 5, len - 4}));
  }
}

// The definition, read literally: nodes of a suffix tree are strings, and their counts those of their occurrences.
struct Oracle {
  struct End {
    int32_t text;
    int32_t end;  // the position behind it
  };
  std::vector<Ints> texts;
  std::vector<End> ends;  // latest first
  bool by_key = false;    // of the output's occurrences, those with a longer key come first
  SuffixSettings settings;
  int32_t num_drafts;
  Ints row;

  Ints best;
  float best_score = 0;

  [[nodiscard]] int32_t count(const Ints& s) const {
    int32_t n = 0;
    for (const Ints& text : texts) {
      for (auto at = text.begin();
           (at = std::search(at, text.end(), s.begin(), s.end())) != text.end();
           ++at) {
        ++n;
      }
    }
    return n;
  }
  [[nodiscard]] bool ends_with(const End& e, const Ints& s) const {
    const Ints& text = texts[static_cast<size_t>(e.text)];
    return e.end >= std::ssize(s) &&
           std::equal(s.begin(), s.end(), text.begin() + e.end - std::ssize(s));
  }
  [[nodiscard]] int32_t key_len(const End& e, int32_t longest) const {
    int32_t len = 0;
    while (len < longest && ends_with(e, Ints(row.end() - len - 1, row.end()))) {
      ++len;
    }
    return len >= 8 ? 8 : len >= 4 ? 4 : len >= 2 ? 2 : len;
  }

  void run() {
    const int32_t depth = settings.max_tree_depth;
    const int32_t longest = std::min<int32_t>(static_cast<int32_t>(row.size()), depth) - 1;
    if (by_key) {
      std::ranges::stable_sort(ends, [&](const End& a, const End& b) {
        return key_len(a, longest) > key_len(b, longest);
      });
    }
    for (int32_t m = 1; m <= longest; ++m) {
      Ints node(row.end() - m, row.end());
      if (count(node) == 0) {
        break;
      }
      std::vector<End> here;
      std::ranges::copy_if(
          ends, std::back_inserter(here), [&](const End& e) { return ends_with(e, node); });
      const int32_t most = std::min(
          {num_drafts, depth - m, static_cast<int32_t>(m * settings.max_spec_factor + 1e-6)});
      Ints path;
      float prob = 1;
      float score = 0;
      while (std::ssize(path) < most) {
        int32_t best_count = 0;
        int32_t token = 0;
        for (const End& e : here) {
          const Ints& text = texts[static_cast<size_t>(e.text)];
          const auto at = static_cast<size_t>(e.end) + path.size();
          if (at < text.size() &&
              (path.empty() || std::equal(path.begin(), path.end(), text.begin() + e.end))) {
            Ints child = node;
            child.push_back(text[at]);
            if (count(child) > best_count) {
              best_count = count(child);
              token = text[at];
            }
          }
        }
        if (best_count == 0) {
          break;
        }
        prob *= static_cast<float>(best_count) / static_cast<float>(count(node));
        if (prob < static_cast<float>(settings.min_token_prob)) {
          break;
        }
        node.push_back(token);
        path.push_back(token);
        score += prob;
      }
      if (score >= best_score && !path.empty()) {
        best_score = score;
        best = path;
      }
    }
  }
};

TEST(SuffixSearch, AgreesWithASuffixTree) {
  std::mt19937 random(5);
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  int32_t num_by[3] = {0, 0, 0};  // without drafts, from the row, from the outputs
  for (int32_t i = 0; i < 400; ++i) {
    const int32_t vocab = 2 + below(8);
    SuffixSettings settings;
    settings.max_tree_depth = 2 + below(24);
    settings.max_spec_factor = 0.5 * (1 + below(6));
    settings.min_token_prob = 0.1 * below(5);
    const int32_t num_drafts = 1 + below(16);
    // The requests of four rows yield tokens in turn. That of row 0 is the one to draft for.
    const uint32_t first_place = i % 2 == 0 ? 0 : 0U - 32U * static_cast<uint32_t>(1 + below(8));
    Index outputs(10, 100, first_place);
    Oracle global;
    global.by_key = true;
    global.texts.resize(kMaxRows);
    const Ints phrase = [&] {
      Ints tokens(static_cast<size_t>(4 + below(12)));
      std::ranges::generate(tokens, [&] { return below(vocab); });
      return tokens;
    }();
    for (int32_t row = 0; row < kMaxRows; ++row) {
      outputs.begin(row);
    }
    const auto add = [&](int32_t row, int32_t token) {
      Ints& text = global.texts[static_cast<size_t>(row)];
      text.push_back(token);
      outputs.add(row, {token});
      global.ends.insert(global.ends.begin(), {row, static_cast<int32_t>(text.size())});
    };
    for (int32_t turn = below(20); turn >= 0; --turn) {
      const int32_t row = below(kMaxRows);
      if (below(2) == 0) {
        for (const int32_t token : phrase) {
          add(row, token);
        }
      } else {
        add(row, below(vocab));
      }
    }
    Ints tokens(static_cast<size_t>(1 + below(40)));
    std::ranges::generate(tokens, [&] { return below(vocab); });
    const auto prefill_len = static_cast<int32_t>(tokens.size());
    tokens.insert(tokens.end(), global.texts[0].begin(), global.texts[0].end());

    Oracle local;
    local.texts = {tokens};
    for (int32_t end = static_cast<int32_t>(tokens.size()); end > 0; --end) {
      local.ends.push_back({0, end});
    }
    for (Oracle* oracle : {&local, &global}) {
      oracle->settings = settings;
      oracle->num_drafts = num_drafts;
      oracle->row = tokens;
      oracle->run();
    }
    const bool from_outputs = global.best_score > local.best_score;
    const Ints& expected = from_outputs ? global.best : local.best;
    ASSERT_EQ(propose_suffix(tokens, outputs.index, settings, num_drafts, prefill_len), expected)
        << "case " << i;
    ++num_by[expected.empty() ? 0 : from_outputs ? 2 : 1];
  }
  EXPECT_GT(num_by[0], 5);
  EXPECT_GT(num_by[1], 50);
  EXPECT_GT(num_by[2], 50);
}

}  // namespace
}  // namespace warprow
