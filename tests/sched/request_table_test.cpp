// SPDX-License-Identifier: Apache-2.0
#include "sched/request_table.h"

#include "base/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RequestTable, FindsById) {
  RequestTable table;
  const int32_t a = table.add(70);
  const int32_t b = table.add(80);
  EXPECT_NE(a, b);
  EXPECT_EQ(table.find(70), a);
  EXPECT_EQ(table.find(80), b);
  EXPECT_EQ(table.find(90), -1);
  table.remove(a);
  EXPECT_EQ(table.find(70), -1);
  EXPECT_EQ(table.add(90), a);  // slots are reused
}

TEST(RequestTable, TheSameIdTwiceIsOurMistake) {
  RequestTable table;
  table.add(70);
  const ScopedCheckThrows throws;
  EXPECT_THROW(table.add(70), CheckFailure);
}

std::vector<uint64_t> ids_of(const RequestTable& table, const RequestList& list) {
  std::vector<uint64_t> ids;
  for (int32_t i = list.front(); i >= 0; i = table[i].next) {
    ids.push_back(table[i].id);
  }
  EXPECT_EQ(static_cast<int32_t>(ids.size()), list.size());
  return ids;
}

TEST(RequestList, InsertAndErase) {
  RequestTable table;
  RequestList list(table);
  const int32_t a = table.add(1);
  const int32_t b = table.add(2);
  const int32_t c = table.add(3);
  list.insert_after(-1, b);
  list.insert_after(-1, a);
  list.insert_after(b, c);
  EXPECT_THAT(ids_of(table, list), ElementsAre(1, 2, 3));
  EXPECT_EQ(list.back(), c);
  list.erase(b);
  EXPECT_THAT(ids_of(table, list), ElementsAre(1, 3));
  list.insert_after(a, b);
  EXPECT_THAT(ids_of(table, list), ElementsAre(1, 2, 3));
  list.erase(c);
  EXPECT_EQ(list.back(), b);
  list.erase(a);
  list.erase(b);
  EXPECT_THAT(ids_of(table, list), IsEmpty());
  EXPECT_EQ(list.back(), -1);
}

}  // namespace
}  // namespace warprow
