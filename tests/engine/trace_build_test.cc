// BuildTrace: what the threads recorded becomes a trace. Pure, so the records are made by hand.
#include "core/trace_build.h"

#include "support/engine_test.h"

namespace engine::test {
namespace {

using namespace engine::detail;

// Records as the threads of an engine would make them. Blocks and Vars are addresses of this array.
struct Recorded {
  char blocks[16];
  TraceRecords all;

  TraceRecord& Add(TraceKind kind, const char* name, int block, int64_t begin, int64_t end) {
    all.records.push_back(
        {.kind = kind, .name = name, .thread = "cpu/0", .begin_ns = begin, .end_ns = end, .op = blocks + block});
    return all.records.back();
  }
  void Touches(const char* name, int var, AccessMode mode) {
    TraceRecord& r = all.records.back();
    if (r.touches++ == 0) r.first_touch = static_cast<uint32_t>(all.touches.size());
    all.touches.push_back({name, reinterpret_cast<uint64_t>(blocks + var), mode});
  }
  Trace Build() { return BuildTrace(all, {}, {}); }
};

TEST(TraceBuildTest, ABlockThatIsUsedAgainBelongsToItsLastPush) {
  Recorded r;
  r.Add(TraceKind::kPushed, "first", 0, 1, 1);
  r.Add(TraceKind::kRan, "first", 0, 2, 3);
  r.Add(TraceKind::kPushed, "second", 0, 4, 4);
  r.Add(TraceKind::kRan, "second", 0, 6, 7);
  r.Add(TraceKind::kPushed, "third", 0, 9, 9);
  const Trace trace = r.Build();
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.events[0].pushed_ns, 1);
  EXPECT_EQ(trace.events[1].pushed_ns, 4);
  EXPECT_EQ(trace.pending, 1u);
}

TEST(TraceBuildTest, AVarInTheBlockOfADeletedOneIsAnotherVar) {
  Recorded r;
  r.Add(TraceKind::kPushed, "old", 0, 1, 1);
  r.Add(TraceKind::kRan, "old", 0, 2, 3);
  r.Touches("v", 9, AccessMode::kWrite);
  r.Add(TraceKind::kDeleted, "", 9, 4, 4);
  r.Add(TraceKind::kPushed, "new", 1, 5, 5);
  r.Add(TraceKind::kRan, "new", 1, 6, 7);
  r.Touches("w", 9, AccessMode::kUpdate);
  const Trace trace = r.Build();
  EXPECT_TRUE(trace.events[1].after.empty());
  EXPECT_NE(trace.events[0].uses[0].var, trace.events[1].uses[0].var);
}

TEST(TraceBuildTest, AWriterComesBehindAllReadersAndTheyBehindTheWriterBefore) {
  Recorded r;
  r.Add(TraceKind::kRan, "writer", 0, 1, 2);
  r.Touches("v", 9, AccessMode::kWrite);
  for (int i = 1; i <= 3; ++i) {
    r.Add(TraceKind::kRan, "reader", i, 2 + i, 10 + i);
    r.Touches("v", 9, AccessMode::kRead);
  }
  r.Add(TraceKind::kRan, "next", 4, 20, 21);
  r.Touches("v", 9, AccessMode::kUpdate);
  const Trace trace = r.Build();
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(trace.events[i].after, std::vector<uint64_t>{0});
  EXPECT_EQ(trace.events[4].after, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(trace.events[4].ready_ns, 13);
}

TEST(TraceBuildTest, AnAsynchronousOpEndsWithItsCompletion) {
  Recorded r;
  r.Add(TraceKind::kRan, "async", 0, 1, 2);
  r.Touches("v", 9, AccessMode::kWrite);
  r.Add(TraceKind::kSettled, "", 0, 5, 5);
  r.Add(TraceKind::kRan, "behind", 1, 7, 8);
  r.Touches("v", 9, AccessMode::kRead);
  const Trace trace = r.Build();
  EXPECT_EQ(trace.events[0].settled_ns, 5);
  EXPECT_EQ(trace.events[1].ready_ns, 5);
}

TEST(TraceBuildTest, FirstNodesOfARunComeBehindWhatTheRunCameBehind) {
  Recorded r;
  r.Add(TraceKind::kRan, "before", 0, 1, 2);
  r.Touches("v", 9, AccessMode::kWrite);
  r.Add(TraceKind::kPushed, "plan", 1, 1, 1);
  r.Touches("v", 9, AccessMode::kRead);
  for (int i = 0; i < 2; ++i) {
    TraceRecord& node = r.Add(TraceKind::kRan, i ? "second" : "first", 2, 4 + 2 * i, 5 + 2 * i);
    node.run = r.blocks + 1;
    r.Touches(nullptr, 3, i ? AccessMode::kRead : AccessMode::kWrite);
  }
  const Trace trace = r.Build();
  EXPECT_EQ(trace.events[1].after, std::vector<uint64_t>{0});
  EXPECT_EQ(trace.events[2].after, std::vector<uint64_t>{1});
  EXPECT_EQ(std::string(trace.events[1].plan), "plan");
  EXPECT_EQ(trace.events[1].run, 1u);
  EXPECT_EQ(trace.pending, 0u);
}

TEST(TraceBuildTest, UnnamedThreadsAreNumbered) {
  Recorded r;
  for (uint32_t number : {7u, 3u, 7u}) {
    TraceRecord& record = r.Add(TraceKind::kRan, "op", 0, number, number);
    record.thread = nullptr;
    record.thread_number = number;
  }
  const Trace trace = r.Build();
  EXPECT_EQ(std::string(trace.events[0].thread), "caller");
  EXPECT_EQ(std::string(trace.events[1].thread), "caller 2");
  EXPECT_EQ(std::string(trace.events[2].thread), "caller 2");
}

}  // namespace
}  // namespace engine::test
