// HandleTable: what the C API's handles rest on.
#include "c_api/handles.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace engine::capi {
namespace {

struct Counted {
  explicit Counted(std::atomic<int>* counter, bool fails = false) : alive(counter) {
    if (fails) throw 1;
    alive->fetch_add(1);
  }
  ~Counted() { alive->fetch_sub(1); }
  std::atomic<int>* alive;
};

using Table = HandleTable<Counted, 3>;

TEST(HandleTable, LastReleaseDestroysTheObjectAndTheHandle) {
  static Table table;
  std::atomic<int> alive{0};
  const uint64_t handle = table.Create(&alive);
  EXPECT_NE(handle, 0u);
  EXPECT_NE(table.Peek(handle), nullptr);
  EXPECT_NE(table.Retain(handle), nullptr);
  EXPECT_TRUE(table.Release(handle));
  EXPECT_EQ(alive, 1);
  EXPECT_TRUE(table.Release(handle));
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(table.Peek(handle), nullptr);
  EXPECT_EQ(table.Retain(handle), nullptr);
  EXPECT_FALSE(table.Release(handle));
}

TEST(HandleTable, NoBitPatternIsFollowed) {
  static Table table;
  std::atomic<int> alive{0};
  const uint64_t handle = table.Create(&alive);
  for (int bit = 0; bit < 64; ++bit) EXPECT_EQ(table.Peek(handle ^ uint64_t{1} << bit), nullptr) << bit;
  for (const uint64_t bits : {uint64_t{0}, ~uint64_t{0}, uint64_t{1} << 32 | uint64_t{3} << 28 | 0xfffffff}) {
    EXPECT_EQ(table.Peek(bits), nullptr);
  }
  EXPECT_TRUE(table.Release(handle));
}

TEST(HandleTable, ThrowingConstructorLeavesNothing) {
  static Table table;
  std::atomic<int> alive{0};
  EXPECT_THROW(table.Create(&alive, true), int);
  const uint64_t handle = table.Create(&alive);
  EXPECT_EQ(handle & 0xfffffff, 0u) << "the slot of the failed one is used again";
  EXPECT_TRUE(table.Release(handle));
}

TEST(HandleTable, MemoryFollowsTheHandlesAliveNotThoseMade) {
  static Table table;
  std::atomic<int> alive{0};
  uint64_t highest = 0;
  for (int i = 0; i < 100000; ++i) {
    const uint64_t a = table.Create(&alive), b = table.Create(&alive);
    highest = std::max({highest, a & 0xfffffff, b & 0xfffffff});
    ASSERT_TRUE(table.Release(a) && table.Release(b));
  }
  EXPECT_LE(highest, 1u);
}

TEST(HandleTable, HandlesAreDistinctOverChunks) {
  static Table table;
  std::atomic<int> alive{0};
  std::vector<uint64_t> handles;
  for (int i = 0; i < 5000; ++i) handles.push_back(table.Create(&alive));
  EXPECT_EQ(alive, 5000);
  auto sorted = handles;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
  for (const uint64_t handle : handles) EXPECT_TRUE(table.Release(handle));
  EXPECT_EQ(alive, 0);
}

TEST(HandleTable, ThreadsNeverShareASlotAndStaleHandlesStayDead) {
  static Table table;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::atomic<int> mine{0};
      std::vector<uint64_t> live;
      for (int i = 0; i < 20000; ++i) {
        live.push_back(table.Create(&mine));
        EXPECT_EQ(table.Peek(live.back())->alive, &mine);
        if (live.size() == 8) {
          for (const uint64_t handle : live) {
            EXPECT_EQ(table.Peek(handle)->alive, &mine);
            EXPECT_TRUE(table.Release(handle));
            EXPECT_EQ(table.Peek(handle), nullptr);
          }
          live.clear();
        }
      }
      for (const uint64_t handle : live) EXPECT_TRUE(table.Release(handle));
      EXPECT_EQ(mine, 0);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(HandleTable, OneOfTwoRacingReleasesWins) {
  static Table table;
  std::atomic<int> alive{0};
  for (int i = 0; i < 2000; ++i) {
    const uint64_t handle = table.Create(&alive);
    std::atomic<int> released{0};
    std::thread other([&] { released += table.Release(handle); });
    released += table.Release(handle);
    other.join();
    ASSERT_EQ(released, 1);
    ASSERT_EQ(alive, 0);
  }
}

}  // namespace
}  // namespace engine::capi
