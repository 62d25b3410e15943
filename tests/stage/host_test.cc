// A front end's host: its threads make the items, and its lock is given up wherever a stage waits.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/smart_stage.h"
#include "engine/spi/stage_host.h"
#include "engine/stage.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

using namespace std::chrono_literals;

// An interpreter lock, held by producers and by callers but while they wait.
class LockedHost final : public StageHost {
 public:
  void Spawn(const std::string& name, std::function<void()> produce) override {
    EXPECT_TRUE(held_);
    names.push_back(name);
    if (refuse) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    threads_.emplace_back([this, produce = std::move(produce)]() mutable {
      Lock();
      produce();
      produce = {};
      Unlock();
    });
  }
  // In short attempts, as for Ctrl-C.
  void Await(const Attempt& attempt) override {
    for (bool over = false; !over;) {
      Unlock();
      over = attempt(std::chrono::steady_clock::now() + 1ms);
      Lock();
      if (!over && give_up) throw WaitGivenUp();
    }
  }
  void Take(const Attempt& attempt) override {  // first it looks
    if (!attempt(StageClock::Time::min())) Await(attempt);
  }
  void Lock() {
    mu_.lock();
    held_ = true;
  }
  void Unlock() {
    EXPECT_TRUE(held_);
    held_ = false;
    ++given_up;
    mu_.unlock();
  }
  // What a source does.
  template <class T>
  T Checked(T value) {
    EXPECT_TRUE(held_);
    return value;
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  std::vector<std::string> names;
  bool refuse = false, give_up = false;
  int given_up = 0;  // how often the lock was; guarded by mu_

 private:
  std::mutex mu_;
  bool held_ = false;  // guarded by mu_
  std::vector<std::thread> threads_;
};

struct Locked {
  explicit Locked(LockedHost& h) : host(h) { host.Lock(); }
  ~Locked() { host.Unlock(); }
  LockedHost& host;
};

struct StageHostTest : testing::Test {
  void TearDown() override { host->Join(); }
  const std::shared_ptr<LockedHost> host = std::make_shared<LockedHost>();
};

TEST_F(StageHostTest, ItsThreadsMakeTheItemsInOrder) {
  for (const bool serial : {true, false}) {
    const Locked lock(*host);
    const auto next = [host = host, n = 0]() mutable -> std::optional<int> {
      return host->Checked(n < 100 ? std::optional<int>(n++) : std::nullopt);
    };
    const StageOptions options{.name = "rows", .capacity = 2, .num_threads = serial ? 3 : 1, .host = host};
    Stage<int> stage = serial ? Stage<int>(options, next, [host = host](int i) { return host->Checked(i); })
                              : Stage<int>(options, next);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(stage.Take(), i);
    EXPECT_EQ(stage.Take(), std::nullopt);
    EXPECT_TRUE(stage.JoinFor(Timeout::kForever));
    EXPECT_EQ(host->names, std::vector<std::string>(serial ? 3 : 4, "rows"));
  }
}

TEST_F(StageHostTest, AStageThatGoesWaitsForNoProducer) {
  Gate gate;
  auto in_source = std::make_shared<std::atomic<bool>>(false);
  {
    const Locked lock(*host);
    Stage<int> stage({.host = host}, [host = host, &gate, in_source] {
      *in_source = true;
      StageHost::Blocking(host.get(), [&] { gate.Wait(); });
      return 1;
    });
    std::optional<int> item;
    while (!*in_source) EXPECT_EQ(stage.TakeFor(&item, 1ms), StagingArea::Taken::kTimeout);
    EXPECT_FALSE(stage.JoinFor(1ms));
  }
  gate.Open();
  host->Join();  // it ends by itself, and finds what it uses
}

TEST_F(StageHostTest, AWaitThatIsGivenUpLosesNothing) {
  Gate gate;
  const Locked lock(*host);
  Stage<int> stage({.host = host}, [host = host, &gate, n = 0]() mutable {
    StageHost::Blocking(host.get(), [&] { gate.Wait(); });
    return n++;
  });
  host->give_up = true;
  EXPECT_THROW(stage.Take(), WaitGivenUp);
  host->give_up = false;
  gate.Open();
  EXPECT_EQ(stage.Take(), 0);
  stage.Cancel();
  EXPECT_TRUE(stage.JoinFor(Timeout::kForever));
}

// Another thread is in a source that does not return.
TEST_F(StageHostTest, AWaitForATurnMayBeGivenUp) {
  Engine eng(Quiet(1));
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  graph.Output(graph.Add({.name = "same", .inputs = {row}}, [](int x) { return x; })[0]);
  Gate gate;
  Counter inside;
  const auto read = [&, n = 0]() mutable {
    inside.Add();
    StageHost::Blocking(host.get(), [&] { gate.Wait(); });
    return n++;
  };
  SmartStage steps(eng, graph, {SourceOf<int>("rows", row, read)},
                   {.stage = {.num_clients = 2, .host = host}, .do_smart_stage = false});
  std::thread first([&] {
    const Locked lock(*host);
    EXPECT_EQ(steps.Next().Take<int>(0), 0);
  });
  inside.WaitFor(1);
  {
    const Locked lock(*host);
    host->give_up = true;
    EXPECT_THROW(steps.Next(), WaitGivenUp);
    host->give_up = false;
  }
  gate.Open();
  first.join();
  const Locked lock(*host);
  EXPECT_EQ(steps.Next().Take<int>(0), 1);
}

TEST_F(StageHostTest, AThreadThatItCannotMakeIsRefusedAndMayBeAskedForAgain) {
  const Locked lock(*host);
  host->refuse = true;
  Stage<int> stage({.host = host}, [n = 0]() mutable { return n++; });
  EXPECT_THROW(stage.Take(), Error);
  host->refuse = false;
  EXPECT_EQ(stage.Take(), 0);
  stage.Cancel();
  EXPECT_TRUE(stage.JoinFor(Timeout::kForever));
}

TEST_F(StageHostTest, SmartStagesRunTheirLevelsOnItsThreadsAndNodesWithoutItsLock) {
  Engine eng(Quiet(1));
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  const auto add = [&](ValueId to) {
    return graph.Add({.name = "add", .inputs = {to}, .outputs = 1}, [host = host](NodeContext& ctx) {
      const Locked lock(*host);  // as a body in Python
      ctx.Return(0, ctx.In<int>(0) + 1);
    })[0];
  };
  graph.Output(add(add(row)));
  for (const auto timeout : {0ms, 60'000ms}) {
    for (const int profile : {0, 2}) {
      const Locked lock(*host);
      SmartStage steps(eng, graph,
                       {SourceOf<int>("rows", row,
                                      [host = host, n = 0]() mutable {
                                        return host->Checked(n < 30 ? std::optional<int>(n++) : std::nullopt);
                                      })},
                       {.stage = {.capacity = 2, .num_threads = 2, .take_timeout = timeout, .host = host},
                        .max_levels = 2,
                        .profile_steps = profile,
                        .guard_steps = 2});
      int expected = 2;
      while (engine::Run run = steps.Next()) {
        StageHost::Blocking(host.get(), [&] { run.Wait(); });
        EXPECT_EQ(run.Take<int>(0), expected++);
      }
      EXPECT_EQ(expected, 32);
    }
  }
}

TEST_F(StageHostTest, AStepOfWhichNothingIsLeftToRunKeepsTheLock) {
  Engine eng(Quiet(1));
  Graph graph;
  const ValueId row = graph.Input<int>("row");
  const auto twice = [](NodeContext& ctx) { ctx.Return(0, 2 * ctx.In<int>(0)); };
  graph.Output(graph.Add({.name = "twice", .inputs = {row}, .outputs = 1}, twice)[0]);
  const Locked lock(*host);
  const auto rows = [n = 0]() mutable { return n < 30 ? std::optional<int>(n++) : std::nullopt; };
  SmartStage steps(eng, graph, {SourceOf<int>("rows", row, rows)},
                   {.stage = {.capacity = 2, .host = host}, .profile_steps = 0, .guard_steps = 0});
  for (int i = 0; i < 30; ++i) {
    if (i > 0)
      StageHost::Blocking(host.get(), [&] {
        while (steps.stats().stage.fill == 0) std::this_thread::yield();
      });
    const int before = host->given_up;
    const engine::Run run = steps.Next({}, {.policy = Policy::kInline, .priority = {}});
    EXPECT_TRUE(i == 0 || host->given_up == before);
    EXPECT_TRUE(run.done());
  }
}

}  // namespace
}  // namespace engine::test
