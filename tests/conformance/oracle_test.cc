// The oracle finds each kind of race, planted, and says nothing about correct programs. It judges the order that was asked
// for, so the clock does not matter; both are used.
#include "conformance.h"
#include "support/happens_before.h"

namespace engine::test {
namespace {

using Clock = SoftwareDeviceOptions::Clock;

class Oracle : public testing::TestWithParam<Clock> {
 protected:
  void SetUp() override {
    oracle_ = std::make_shared<HappensBefore>();
    device_ = MakeSoftwareDevice({.clock = GetParam(), .seed = 7, .observer = oracle_});
    for (Stream& stream : streams_) EXPECT_OK(device_->CreateStream(0, &stream));
    for (Event& event : events_) EXPECT_OK(device_->CreateEvent(&event));
    EXPECT_OK(device_->Allocate(kBytes, streams_[0], &buffer_));
    EXPECT_OK(device_->Synchronize(streams_[0]));
  }
  void Write(Stream stream, const char* name) { Launch(stream, name, true); }
  void Read(Stream stream, const char* name) { Launch(stream, name, false); }
  void Launch(Stream stream, const char* name, bool writes) {
    EXPECT_OK(device_->Launch(stream, {name, {}, {}, {{buffer_, kBytes, writes}}}));
  }
  void ExpectClean() {
    EXPECT_EQ(oracle_->races(), std::vector<std::string>{});
    EXPECT_GT(oracle_->checked(), 0u);
  }
  // Exactly one race, between these two.
  void ExpectRace(const std::string& first, const std::string& second) {
    const std::vector<std::string> races = oracle_->races();
    ASSERT_EQ(races.size(), 1u) << testing::PrintToString(races);
    EXPECT_NE(races[0].find("'" + first + "'"), std::string::npos) << races[0];
    EXPECT_NE(races[0].find("'" + second + "'"), std::string::npos) << races[0];
  }
  static constexpr size_t kBytes = 1024;
  std::shared_ptr<HappensBefore> oracle_;
  std::shared_ptr<SoftwareDevice> device_;
  Stream streams_[3];
  Event events_[3];
  void* buffer_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(All, Oracle, testing::Values(Clock::kThreads, Clock::kVirtual),
                         [](const auto& p) { return p.param == Clock::kThreads ? "threads" : "virtual"; });

TEST_P(Oracle, AcceptsStreamOrderEventsAndHostSynchronization) {
  Write(streams_[0], "first");
  Write(streams_[0], "second");
  EXPECT_OK(device_->Record(events_[0], streams_[0]));
  EXPECT_OK(device_->Wait(streams_[1], events_[0]));
  Read(streams_[1], "third");
  EXPECT_OK(device_->Record(events_[1], streams_[1]));
  EXPECT_OK(device_->Wait(streams_[2], events_[1]));  // and by that, of the first stream as well
  Write(streams_[2], "fourth");
  EXPECT_OK(device_->Record(events_[2], streams_[2]));
  EXPECT_OK(device_->Synchronize(events_[2]));
  oracle_->HostAccess("host", buffer_, kBytes, false);
  Write(streams_[0], "behind what the host knows");
  ExpectClean();
}

TEST_P(Oracle, FindsAMissingWait) {
  Write(streams_[0], "producer");
  EXPECT_OK(device_->Record(events_[0], streams_[0]));
  Read(streams_[1], "consumer");
  ExpectRace("producer", "consumer");
}

TEST_P(Oracle, FindsAWriterThatDoesNotWaitForAReader) {
  Read(streams_[0], "reader");
  Write(streams_[1], "writer");
  ExpectRace("reader", "writer");
}

TEST_P(Oracle, ReadersNeedNoOrder) {
  Read(streams_[0], "one");
  Read(streams_[1], "other");
  ExpectClean();
}

TEST_P(Oracle, FindsAnEventThatWasRecordedBeforeTheWork) {
  EXPECT_OK(device_->Record(events_[0], streams_[0]));
  Write(streams_[0], "late producer");
  EXPECT_OK(device_->Wait(streams_[1], events_[0]));
  Read(streams_[1], "consumer");
  ExpectRace("late producer", "consumer");
}

TEST_P(Oracle, FindsAnEventThatWasRecordedAgainTooEarly) {
  Write(streams_[0], "producer");
  EXPECT_OK(device_->Record(events_[0], streams_[0]));
  EXPECT_OK(device_->Record(events_[0], streams_[2]));  // someone was still to wait for it
  EXPECT_OK(device_->Wait(streams_[1], events_[0]));
  Read(streams_[1], "consumer");
  ExpectRace("producer", "consumer");
}

TEST_P(Oracle, FindsAHostReadBeforeTheRetirement) {
  Write(streams_[0], "producer");
  EXPECT_OK(device_->Record(events_[0], streams_[0]));
  oracle_->HostAccess("host read", buffer_, kBytes, false);
  ExpectRace("producer", "host read");
}

TEST_P(Oracle, FindsAFreeThatTheLastUseIsNotOrderedWith) {
  EXPECT_OK(device_->Record(events_[0], streams_[0]));
  EXPECT_OK(device_->Wait(streams_[1], events_[0]));
  Read(streams_[1], "last use");
  EXPECT_OK(device_->Free(buffer_, streams_[0]));
  ExpectRace("last use", "Free");
}

TEST_P(Oracle, FindsAUseOfFreedMemory) {
  const void* gone = buffer_;
  EXPECT_OK(device_->Free(buffer_, streams_[0]));
  EXPECT_OK(device_->Synchronize(streams_[0]));
  oracle_->HostAccess("late look", gone, kBytes, false);
  ExpectRace("late look", "Free");
}

TEST_P(Oracle, FindsOverlapsOfPartsAndNoneWhereThereAreNone) {
  const auto part = [&](Stream stream, const char* name, size_t from, size_t bytes) {
    EXPECT_OK(device_->Launch(stream, {name, {}, {}, {{static_cast<char*>(buffer_) + from, bytes, true}}}));
  };
  part(streams_[0], "lower half", 0, kBytes / 2);
  part(streams_[1], "upper half", kBytes / 2, kBytes / 2);
  ExpectClean();
  part(streams_[2], "last byte of the lower half", kBytes / 2 - 1, 1);
  ExpectRace("lower half", "last byte of the lower half");
}

TEST_P(Oracle, SeesInsideGraphs) {
  DeviceGraph graph;
  EXPECT_OK(device_->BeginCapture(streams_[0]));
  EXPECT_OK(device_->Record(events_[0], streams_[0]));
  EXPECT_OK(device_->Wait(streams_[1], events_[0]));
  Write(streams_[1], "branch");
  EXPECT_OK(device_->Record(events_[1], streams_[1]));
  EXPECT_OK(device_->Wait(streams_[0], events_[1]));
  Write(streams_[0], "after the join");
  EXPECT_OK(device_->EndCapture(streams_[0], &graph));
  DeviceGraphExec exec;
  EXPECT_OK(device_->Instantiate(graph, &exec, nullptr));
  EXPECT_OK(device_->Launch(exec, streams_[0]));
  EXPECT_OK(device_->Launch(exec, streams_[2]));
  Read(streams_[2], "behind the launch");
  ExpectClean();
  Read(streams_[0], "beside the second launch");
  ExpectRace("after the join", "beside the second launch");
}

TEST_P(Oracle, FindsBranchesOfAGraphThatMeet) {
  DeviceGraph graph;
  EXPECT_OK(device_->BeginCapture(streams_[0]));
  EXPECT_OK(device_->Record(events_[0], streams_[0]));
  EXPECT_OK(device_->Wait(streams_[1], events_[0]));
  Write(streams_[1], "branch");
  Write(streams_[0], "trunk");
  EXPECT_OK(device_->Record(events_[1], streams_[1]));
  EXPECT_OK(device_->Wait(streams_[0], events_[1]));
  EXPECT_OK(device_->EndCapture(streams_[0], &graph));
  DeviceGraphExec exec;
  EXPECT_OK(device_->Instantiate(graph, &exec, nullptr));
  ExpectClean();  // nothing has been ordered yet
  EXPECT_OK(device_->Launch(exec, streams_[0]));
  ExpectRace("branch", "trunk");
}

TEST_P(Oracle, MemoryThatComesBackFromThePoolIsNew) {
  EXPECT_OK(device_->Free(buffer_, streams_[0]));
  EXPECT_OK(device_->Allocate(kBytes, streams_[0], &buffer_));
  Write(streams_[0], "new owner");
  ExpectClean();
  Write(streams_[1], "stranger");
  ExpectRace("new owner", "stranger");
}

}  // namespace
}  // namespace engine::test
