// Autotune on the virtual clock: the real buffer and the real rule, simulated producers and a simulated consumer.
#include "autotune.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "stage_buffer.h"
#include "support/sanitizers.h"
#include "support/seed.h"
#include "turned_clock.h"

namespace engine::detail {
namespace {

using test::Random;

// Times in microseconds. A duration is uniform in mean * [1 - jitter, 1 + jitter].
struct Load {
  double make;     // of one item by one producer
  double compute;  // of one step
  double jitter;
};

class Simulation {
 public:
  Simulation(Load load, size_t capacity, int threads, std::optional<Autotune::Bounds> bounds = {})
      : load_(load), buffer_({.capacity = capacity, .threads = static_cast<size_t>(threads)}, clock_), random_(7) {
    producers_.resize(static_cast<size_t>(threads));
    if (bounds) tuner_.emplace(*bounds, capacity, threads);
  }

  // Mean time of a step over the second half of `takes`.
  double Step(int takes) {
    double half = 0;
    for (int i = 0; i < takes; ++i) {
      if (i == takes / 2) half = now_;
      TakeOne();
      if (tuner_ && ++window_.takes == tuner_->window()) Tune();
    }
    return (now_ - half) / (takes - takes / 2);
  }
  size_t capacity() const { return buffer_.limits().capacity; }
  int threads() const { return static_cast<int>(producers_.size()); }

 private:
  struct Producer {
    enum { kIdle, kMaking, kWaiting } state = kIdle;
    double until = 0, since = 0;
    uint64_t ticket = 0;
  };
  double Duration(double mean) {
    return mean * (1 + load_.jitter * (2 * static_cast<double>(random_.Below(1 << 20)) / (1 << 20) - 1));
  }

  // What producers do up to time `until`.
  void Produce(double until) {
    for (;;) {
      for (Producer& p : producers_) {
        if (p.state == Producer::kWaiting && std::erase(buffer_.released, p.ticket) > 0) {
          window_.producer_wait += now_ - p.since;
          p.state = Producer::kIdle;
        }
        if (p.state == Producer::kIdle && buffer_.Begin(&p.ticket) == StageBuffer::Begun::kItem) {
          p.state = Producer::kMaking;
          p.until = std::max(now_, p.until) + Duration(load_.make);
        }
      }
      const auto next = std::min_element(producers_.begin(), producers_.end(), [](const auto& a, const auto& b) {
        return (a.state == Producer::kMaking ? a.until : INFINITY) <
               (b.state == Producer::kMaking ? b.until : INFINITY);
      });
      if (next->state != Producer::kMaking || next->until > until) break;
      now_ = std::max(now_, next->until);
      uint64_t place;
      const auto put = buffer_.PutItem(next->ticket, StageItem(&alive_, [](void*) noexcept {}), &place);
      next->state = put == StageBuffer::Put::kWaiting ? Producer::kWaiting : Producer::kIdle;
      next->since = now_;
    }
    if (until != INFINITY) now_ = until;
  }

  // The consumer computes, then takes as soon as it can.
  void TakeOne() {
    Produce(now_ + Duration(load_.compute));
    const double begin = now_;
    StageItem item;
    while (buffer_.TakeItem(&item) == StageBuffer::Take::kEmpty) {
      double next = INFINITY;
      for (const Producer& p : producers_) {
        if (p.state == Producer::kMaking) next = std::min(next, p.until);
      }
      Produce(std::max(next, now_));
    }
    window_.consumer_wait += now_ - begin;
  }

  void Tune() {
    window_.seconds = now_ - window_begin_;
    tuner_->Observe(window_);
    buffer_.Grow(tuner_->capacity(), static_cast<size_t>(tuner_->threads()));
    // A producer that is taken back has nothing in hand here: the simulation retires the last one when it is idle.
    while (producers_.size() < static_cast<size_t>(tuner_->threads())) producers_.push_back({.until = now_});
    while (producers_.size() > static_cast<size_t>(tuner_->threads()) && producers_.back().state != Producer::kMaking) {
      producers_.pop_back();
    }
    window_ = {};
    window_begin_ = now_;
  }

  Load load_;
  test::TurnedClock clock_;
  StageBuffer buffer_;
  std::optional<Autotune> tuner_;
  std::vector<Producer> producers_;
  Random random_;
  double now_ = 0, window_begin_ = 0;
  Autotune::Window window_;
  int alive_ = 0;
};

constexpr int kTakes = 60'000;

double Best(const Load& load, int threads) { return std::max(load.make / threads, load.compute); }

// The smallest capacity whose step is within 1.03 of the best.
size_t Optimum(const Load& load, int threads) {
  for (size_t capacity = 1; capacity < 64; ++capacity) {
    if (Simulation(load, capacity, threads).Step(kTakes) <= 1.03 * Best(load, threads)) return capacity;
  }
  return 64;
}

TEST(AutotuneTest, FindsACapacityWithinTwoOfTheSmallestThatReachesTheBestStep) {
  if (test::kSanitized) GTEST_SKIP() << "hundreds of simulations like those of the other tests";
  for (const double jitter : {0.0, 0.25, 0.5, 1.0}) {
    for (const double compute : {0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0}) {
      for (const int threads : {1, 2}) {
        const Load load{100.0 * threads, 100 * compute, jitter};
        SCOPED_TRACE("jitter " + std::to_string(jitter) + ", compute/make " + std::to_string(compute) + ", threads " +
                     std::to_string(threads));
        const size_t optimum = Optimum(load, threads);
        Simulation tuned(load, 1, threads, Autotune::Bounds{.max_capacity = 256, .max_threads = threads});
        tuned.Step(kTakes);
        EXPECT_LE(tuned.capacity(), optimum + 2);
        EXPECT_GE(tuned.capacity() + 2, optimum);
      }
    }
  }
}

TEST(AutotuneTest, ASlowSourceGetsThreadsUntilTheConsumerNoLongerWaits) {
  const Load load{400, 100, 0.5};  // four producers balance one consumer
  Simulation tuned(load, 1, 1, Autotune::Bounds{.max_capacity = 256, .max_threads = 16});
  const double step = tuned.Step(kTakes);
  EXPECT_GE(tuned.threads(), 4);
  EXPECT_LE(tuned.threads(), 6);
  EXPECT_LE(step, 1.03 * load.compute);
}

TEST(AutotuneTest, BoundsHold) {
  Simulation small({100, 100, 1.0}, 1, 1, Autotune::Bounds{.max_capacity = 3, .max_threads = 1});
  small.Step(kTakes);
  EXPECT_EQ(small.capacity(), 3u);

  Autotune bytes({.max_capacity = 256, .capacity_bytes = 2000, .max_threads = 1}, 1, 1);
  for (int i = 0; i < 100; ++i) {
    bytes.Observe({.takes = 100, .seconds = 1, .consumer_wait = 0.3, .producer_wait = 0.3, .item_bytes = 500});
  }
  EXPECT_EQ(bytes.capacity(), 4u);
}

TEST(AutotuneTest, AThreadThatDoesNotHelpIsTakenBackForGood) {
  Autotune tuner({.max_capacity = 256, .max_threads = 8}, 1, 1);
  const Autotune::Window slow{.takes = 100, .seconds = 1, .consumer_wait = 0.5};
  int most = 1;
  for (int i = 0; i < 50; ++i) {
    tuner.Observe(slow);
    most = std::max(most, tuner.threads());
  }
  EXPECT_EQ(most, 2);
  EXPECT_EQ(tuner.threads(), 1);
}

}  // namespace
}  // namespace engine::detail
