// The machine under a stage, without threads and on a clock that the test turns.
#include "stage_buffer.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "turned_clock.h"

namespace engine::detail {
namespace {

using namespace std::chrono_literals;
using Begun = StageBuffer::Begun;
using Put = StageBuffer::Put;
using Take = StageBuffer::Take;

int alive = 0;
StageItem Item(int value, size_t bytes = 1) {
  ++alive;
  return StageItem(
      new int(value),
      [](void* data) noexcept {
        --alive;
        delete static_cast<int*>(data);
      },
      bytes);
}

class StageBufferTest : public testing::Test {
 protected:
  void Make(StageBuffer::Limits limits) { buffer_.emplace(limits, clock_); }
  uint64_t Begin() {
    uint64_t ticket = 999;
    EXPECT_EQ(buffer_->Begin(&ticket), Begun::kItem);
    return ticket;
  }
  Put PutItem(uint64_t ticket, size_t bytes = 1) {
    return buffer_->PutItem(ticket, Item(static_cast<int>(ticket), bytes), &place_);
  }
  // What a consumer sees next: a number, or how the stream stands.
  std::string Next() {
    StageItem item;
    switch (buffer_->TakeItem(&item)) {
      case Take::kItem: return std::to_string(*static_cast<int*>(item.data()));
      case Take::kEmpty: return "empty";
      case Take::kEnd: return "end";
      case Take::kCancelled: return "cancelled";
      case Take::kFailed: break;
    }
    try {
      std::rethrow_exception(buffer_->error());
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  static std::exception_ptr Error(const char* text) { return std::make_exception_ptr(std::runtime_error(text)); }
  void TearDown() override {
    buffer_.reset();
    EXPECT_EQ(alive, 0);
  }

  test::TurnedClock clock_;
  std::optional<StageBuffer> buffer_;
  uint64_t place_ = 0;
};

TEST_F(StageBufferTest, ItemsLeaveInTheOrderOfTheirTicketsHoweverTheyArrive) {
  Make({.capacity = 4, .threads = 4});
  for (int i = 0; i < 4; ++i) Begin();
  EXPECT_EQ(PutItem(2), Put::kReady);
  EXPECT_EQ(PutItem(1), Put::kReady);
  EXPECT_EQ(Next(), "empty");
  EXPECT_EQ(PutItem(0), Put::kReady);
  EXPECT_EQ(Next(), "0");
  EXPECT_EQ(Next(), "1");
  EXPECT_EQ(Next(), "2");
  EXPECT_EQ(Next(), "empty");
  EXPECT_EQ(buffer_->position(), 3u);
}

TEST_F(StageBufferTest, UnorderedItemsLeaveAsTheyArriveAndThePositionWaitsForTheSlowest) {
  Make({.capacity = 4, .threads = 4, .ordered = false});
  for (int i = 0; i < 3; ++i) Begin();
  PutItem(2);
  PutItem(1);
  EXPECT_EQ(Next(), "2");
  EXPECT_EQ(Next(), "1");
  EXPECT_EQ(buffer_->position(), 0u);
  PutItem(0);
  EXPECT_EQ(Next(), "0");
  EXPECT_EQ(buffer_->position(), 3u);
}

TEST_F(StageBufferTest, NoMoreThanCapacityIsBufferedAndTheHeadAlwaysFindsRoom) {
  Make({.capacity = 2, .threads = 3});
  for (int i = 0; i < 3; ++i) Begin();
  EXPECT_EQ(PutItem(2), Put::kReady);  // the other room of the two is kept for the head
  EXPECT_EQ(PutItem(1), Put::kWaiting);
  EXPECT_EQ(PutItem(0), Put::kReady);
  EXPECT_EQ(buffer_->ready(), 2u);
  EXPECT_EQ(Next(), "0");
  EXPECT_FALSE(buffer_->Waits(1));  // it is the head now
  EXPECT_EQ(buffer_->released, std::vector<uint64_t>{1});
  EXPECT_EQ(Next(), "1");
  EXPECT_EQ(Next(), "2");
}

TEST_F(StageBufferTest, BytesBoundTooAndAnItemLargerThanTheBoundStillPasses) {
  Make({.capacity = 10, .capacity_bytes = 100, .threads = 3});
  for (int i = 0; i < 3; ++i) Begin();
  EXPECT_EQ(PutItem(0, 500), Put::kReady);
  EXPECT_EQ(PutItem(1, 60), Put::kWaiting);
  EXPECT_EQ(PutItem(2, 60), Put::kWaiting);
  EXPECT_EQ(Next(), "0");
  EXPECT_EQ(buffer_->ready(), 1u);
  EXPECT_EQ(buffer_->ready_bytes(), 60u);
  EXPECT_EQ(Next(), "1");
  EXPECT_EQ(Next(), "2");
  EXPECT_EQ(buffer_->ready_bytes(), 0u);
}

TEST_F(StageBufferTest, WhatIsUnderWayIsBoundedByCapacityAndThreads) {
  Make({.capacity = 2, .threads = 3});
  uint64_t ticket;
  for (int i = 0; i < 5; ++i) Begin();
  EXPECT_EQ(buffer_->Begin(&ticket), Begun::kLater);
  PutItem(0);
  EXPECT_EQ(buffer_->Begin(&ticket), Begun::kLater);
  Next();
  EXPECT_EQ(buffer_->Begin(&ticket), Begun::kItem);
}

TEST_F(StageBufferTest, TheEndComesAfterWhatWasBegunBefore) {
  Make({.capacity = 4, .threads = 4});
  for (int i = 0; i < 3; ++i) Begin();
  buffer_->End(2, true);
  uint64_t ticket;
  EXPECT_EQ(buffer_->Begin(&ticket), Begun::kOver);
  PutItem(1);
  EXPECT_EQ(Next(), "empty");
  PutItem(0);
  EXPECT_EQ(Next(), "0");
  EXPECT_EQ(Next(), "1");
  EXPECT_EQ(Next(), "end");
  EXPECT_EQ(Next(), "end");
}

TEST_F(StageBufferTest, AnExactEndDiscardsWhatWasBegunLaterAndAnotherDoesNot) {
  for (const bool exact : {true, false}) {
    Make({.capacity = 8, .threads = 4});
    for (int i = 0; i < 4; ++i) Begin();
    PutItem(2);
    buffer_->End(1, exact);
    PutItem(0);
    EXPECT_EQ(PutItem(3), exact ? Put::kOver : Put::kReady);
    EXPECT_EQ(Next(), "0");
    if (!exact) {
      EXPECT_EQ(Next(), "2");
      EXPECT_EQ(Next(), "3");
    }
    EXPECT_EQ(Next(), "end");
    EXPECT_EQ(buffer_->discarded(), exact ? 2u : 0u);
  }
}

TEST_F(StageBufferTest, AnErrorComesAfterTheItemsBeforeItAsOftenAsAsked) {
  Make({.capacity = 8, .threads = 4});
  for (int i = 0; i < 4; ++i) Begin();
  PutItem(3);
  buffer_->Fail(1, Error("broken"));
  EXPECT_EQ(Next(), "empty");
  PutItem(0);
  EXPECT_EQ(PutItem(2), Put::kOver);
  EXPECT_EQ(Next(), "0");
  EXPECT_EQ(Next(), "broken");
  EXPECT_EQ(Next(), "broken");
}

TEST_F(StageBufferTest, OfSeveralErrorsAndEndsTheFirstInOrderCounts) {
  Make({.capacity = 8, .threads = 4});
  for (int i = 0; i < 4; ++i) Begin();
  buffer_->Fail(3, Error("third"));
  buffer_->Fail(1, Error("first"));
  buffer_->End(2, true);
  PutItem(0);
  EXPECT_EQ(Next(), "0");
  EXPECT_EQ(Next(), "first");
}

TEST_F(StageBufferTest, AnUnorderedErrorComesAfterWhatWasFinishedBefore) {
  Make({.capacity = 2, .threads = 4, .ordered = false});
  for (int i = 0; i < 5; ++i) Begin();
  PutItem(3);
  PutItem(1);
  EXPECT_EQ(PutItem(2), Put::kWaiting);
  buffer_->Fail(0, Error("broken"));
  EXPECT_EQ(PutItem(4), Put::kOver);
  EXPECT_EQ(Next(), "3");
  EXPECT_EQ(Next(), "1");
  EXPECT_EQ(Next(), "2");
  EXPECT_EQ(Next(), "broken");
}

TEST_F(StageBufferTest, SkippedItemsLeaveNoGap) {
  Make({.capacity = 2, .threads = 2});
  Begin(), Begin(), Begin();
  buffer_->Skip(1);
  PutItem(2);
  buffer_->Skip(0);
  EXPECT_EQ(Next(), "2");
  EXPECT_EQ(buffer_->position(), 3u);
  EXPECT_EQ(buffer_->skipped(), 2u);
}

TEST_F(StageBufferTest, CancelThrowsEverythingAwayAndReleasesWhoWaits) {
  Make({.capacity = 1, .threads = 3});
  for (int i = 0; i < 3; ++i) Begin();
  PutItem(0);
  EXPECT_EQ(PutItem(1), Put::kWaiting);
  buffer_->Cancel();
  buffer_->Cancel();
  EXPECT_EQ(buffer_->released, std::vector<uint64_t>{1});
  EXPECT_EQ(PutItem(2), Put::kOver);
  EXPECT_EQ(buffer_->trash.size(), 3u);
  EXPECT_EQ(Next(), "cancelled");
}

TEST_F(StageBufferTest, ACancelDoesNotChangeAnEndThatWasReached) {
  Make({.capacity = 1, .threads = 1});
  buffer_->Fail(Begin(), Error("broken"));
  EXPECT_EQ(Next(), "broken");
  buffer_->Cancel();
  EXPECT_EQ(Next(), "broken");
}

TEST_F(StageBufferTest, CloseDeliversWhatWasBegun) {
  Make({.capacity = 1, .threads = 3});
  for (int i = 0; i < 3; ++i) Begin();
  PutItem(0);
  PutItem(1);
  buffer_->Close();
  EXPECT_EQ(Next(), "0");
  EXPECT_EQ(Next(), "1");
  EXPECT_EQ(Next(), "empty");
  PutItem(2);
  EXPECT_EQ(Next(), "2");
  EXPECT_EQ(Next(), "end");
}

TEST_F(StageBufferTest, RoomIsWaitedForUntilNothingWasTakenForTheTimeout) {
  Make({.capacity = 1, .threads = 3, .timeout = 10s});
  for (int i = 0; i < 3; ++i) Begin();
  PutItem(0);
  clock_.Turn(3s);
  EXPECT_EQ(PutItem(1), Put::kWaiting);
  PutItem(2);
  clock_.Turn(9s);
  EXPECT_FALSE(buffer_->Expired(1));
  Next();  // lets 1 in; 2 goes on waiting, from now
  EXPECT_EQ(buffer_->RoomDeadline(2), clock_.Now() + 10s);
  clock_.Turn(10s);
  EXPECT_TRUE(buffer_->Expired(2));
}

TEST_F(StageBufferTest, WhileTheHeadIsBeingMadeTheConsumerIsNotToBlame) {
  Make({.capacity = 1, .threads = 2, .timeout = 10s});
  Begin(), Begin();
  EXPECT_EQ(PutItem(1), Put::kWaiting);
  clock_.Turn(1h);
  EXPECT_FALSE(buffer_->Expired(1));
  PutItem(0);  // the head can be taken from now on
  EXPECT_EQ(buffer_->RoomDeadline(1), clock_.Now() + 10s);
}

TEST_F(StageBufferTest, ADroppedItemIsCountedAndLeavesNoGap) {
  Make({.capacity = 1, .threads = 2, .timeout = 10s});
  Begin(), Begin(), Begin();
  PutItem(0);
  PutItem(1);
  clock_.Turn(10s);
  ASSERT_TRUE(buffer_->Expired(1));
  buffer_->DropWaiting(1);
  EXPECT_EQ(buffer_->drops(), 1u);
  EXPECT_EQ(Next(), "0");
  PutItem(2);
  EXPECT_EQ(Next(), "2");
  EXPECT_EQ(buffer_->position(), 3u);
}

TEST_F(StageBufferTest, AnExpiredItemFailsTheStreamAtItsPlace) {
  Make({.capacity = 1, .threads = 2, .timeout = 10s});
  Begin(), Begin(), Begin();
  PutItem(0);
  PutItem(1);
  PutItem(2);
  buffer_->FailWaiting(1, Error("no room"));
  EXPECT_EQ(Next(), "0");
  EXPECT_EQ(Next(), "no room");
}

TEST_F(StageBufferTest, GrowingLetsInWhoWaits) {
  Make({.capacity = 1, .threads = 3});
  for (int i = 0; i < 3; ++i) Begin();
  PutItem(0);
  PutItem(1);
  PutItem(2);
  EXPECT_EQ(buffer_->waiting(), 2u);
  buffer_->Grow(2, 3);
  EXPECT_EQ(buffer_->ready(), 2u);
  EXPECT_EQ(buffer_->waiting(), 1u);
}

TEST_F(StageBufferTest, AProducerIsToldByTheTakeThatMakesRoomForItsItem) {
  Make({.capacity = 8, .threads = 1});
  for (int i = 0; i < 30; ++i) {
    while (PutItem(Begin()) == Put::kReady) {
    }
    EXPECT_EQ(Next(), std::to_string(i));
    EXPECT_EQ(std::exchange(buffer_->released, {}), std::vector<uint64_t>{place_});
  }
}

}  // namespace
}  // namespace engine::detail
