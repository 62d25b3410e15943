// The system refuses a stage its threads: a clear error for whoever asked, nothing lost, and all goes on once there are threads.
#include <optional>
#include <thread>
#include <vector>

#include "counting.h"
#include "support/engine_test.h"
#include "support/no_threads.h"

namespace engine::test {
namespace {

TEST(StageRefusalsTest, AFirstThreadThatIsRefusedIsAnErrorAndMayBeAskedForAgain) {
  const StagePool pool = MakeStagePool({.global_name = "refusals"});
  Stage<int> stage({.name = "rows", .num_threads = 3, .pool = pool}, Count(10), Same);
  for (int i = 0; i < 3; ++i) {
    const Allow none(0);
    const std::string text = Caught<Error>([&] { stage.Take(); }, "an Error").what();
    EXPECT_TRUE(Has(text, "stage 'rows': the system refused a thread for its source"));
    EXPECT_THROW(stage.Start(), Error);
  }
  EXPECT_EQ(stage.stats().begun, 0u);
  Stage<int> other({.pool = pool}, Count(3));  // the pool is as it was
  EXPECT_EQ(Drain(other), UpTo(3));
  EXPECT_EQ(Drain(stage), UpTo(10));
}

TEST(StageRefusalsTest, ALaterThreadThatIsRefusedIsDoneWithout) {
  for (int allowed = 1; allowed < 4; ++allowed) {
    Stage<int> stage({.capacity = 2, .num_threads = 4}, Count(50), Same);
    {
      const Allow some(allowed);
      stage.Start();
    }
    EXPECT_EQ(Drain(stage), UpTo(50));
  }
}

TEST(StageRefusalsTest, AThreadThatAutotuneAsksForIsDoneWithout) {
  Stage<int> stage({.num_threads = 1, .autotune = true, .max_threads = 4}, Count(2000), Same);
  stage.Start();
  const Allow none(0);
  EXPECT_EQ(Drain(stage), UpTo(2000));
}

// A slow source makes autotune ask for a thread, which does not help and is taken back: that must be the one that never came.
TEST(StageRefusalsTest, AThreadThatNeverCameIsTakenBackFirst) {
  const auto slowly = [](int x) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    return x;
  };
  Stage<int> stage({.num_threads = 1, .autotune = true, .max_threads = 4}, Count(3000), slowly);
  stage.Start();
  const Allow none(0);
  EXPECT_EQ(Drain(stage), UpTo(3000));
}

// Whoever comes while another is being refused is refused too, and does not wait for items that nobody makes.
TEST(StageRefusalsTest, EveryConsumerHearsOfIt) {
  for (int round = 0; round < 50; ++round) {
    Stage<int> stage({.num_clients = 4}, Count(4), Same);
    std::atomic<int> refused{0}, there{0};
    std::vector<std::thread> consumers;
    for (int i = 0; i < 4; ++i)
      consumers.emplace_back([&] {
        ++there;
        while (there < 5) std::this_thread::yield();
        EXPECT_THROW(stage.Take(), Error);
        ++refused;
      });
    while (there < 4) std::this_thread::yield();
    const Allow none(0);
    ++there;
    for (std::thread& consumer : consumers) consumer.join();
    EXPECT_EQ(refused, 4);
  }
}

TEST(StageRefusalsTest, ARestartAfterItBeginsAnew) {
  Stage<int> stage({}, Count(5), Same);
  {
    const Allow none(0);
    EXPECT_THROW(stage.Start(), Error);
  }
  stage.RestartWith(Count(3), Same);
  EXPECT_EQ(Drain(stage), UpTo(3));
}

}  // namespace
}  // namespace engine::test
