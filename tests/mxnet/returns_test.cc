// Where functions of MXNet are destroyed: by who pushes, and by a worker where nobody does.
#include "mxnet/returns.h"

#include <atomic>
#include <random>
#include <thread>

#include "drop_in_test.h"
#include "support/seed.h"

namespace engine_mxnet::test {
namespace {

// Functions that can be told from others, and what has become of them.
class Functions {
 public:
  // Something that a function takes along; it counts where that is destroyed.
  std::shared_ptr<void> Mark() {
    ++made_;
    return {this, [](void* self) { static_cast<Functions*>(self)->Destroyed(); }};
  }
  int kept() const { return made_ - here_ - elsewhere_; }
  int here() const { return here_; }
  int elsewhere() const { return elsewhere_; }

 private:
  void Destroyed() { ++(std::this_thread::get_id() == home_ ? here_ : elsewhere_); }
  const std::thread::id home_ = std::this_thread::get_id();
  std::atomic<int> made_ = 0, here_ = 0, elsewhere_ = 0;
};

// One worker of one, two or four runs marked functions; another op is pending behind them, so nothing has ended.
class ReturnsTest : public DropInTest {
 protected:
  ReturnsTest() {
    Sync(*eng_, [this](abi::RunContext) { begin_.Wait(); }, {}, {chain_});
  }
  ~ReturnsTest() override {
    begin_.Open();
    end_.Open();
    TextOf([&] { eng_->WaitForAll(); });
  }
  void PushMarked(int n) {
    for (int i = 0; i < n; ++i) Sync(*eng_, [mark = functions_.Mark()](abi::RunContext) {}, {}, {chain_});
  }
  // Keeps one op pending, lets the others run, and returns when they have.
  void RunAll() {
    constexpr auto kAlways = abi::Property::kNoSkip;
    Sync(
        *eng_, [this](abi::RunContext) { ran_.Open(); }, {chain_}, {last_}, kAlways);
    Sync(
        *eng_, [this](abi::RunContext) { end_.Wait(); }, {}, {last_}, kAlways);
    begin_.Open();
    ran_.Wait();
  }

  abi::Var* const chain_ = NewVar();
  abi::Var* const last_ = NewVar();
  Functions functions_;
  Gate begin_, ran_, end_;
};
INSTANTIATE_TEST_SUITE_P(Workers, ReturnsTest, testing::Values(1, 2, 4));

TEST_P(ReturnsTest, WhoPushesDestroysThem) {
  PushMarked(10);
  RunAll();
  EXPECT_EQ(functions_.kept(), 10);
  Sync(*eng_, [](abi::RunContext) {}, {}, {last_});
  EXPECT_EQ(functions_.here(), 10);
}

TEST_P(ReturnsTest, NoMoreAreKeptThanThereIsRoomFor) {
  PushMarked(200);
  RunAll();
  EXPECT_GT(functions_.kept(), 0);
  EXPECT_LE(functions_.kept(), static_cast<int>(Returns::kMost));
}

TEST_P(ReturnsTest, NoneIsKeptBehindAWait) {
  PushMarked(200);
  Sync(*eng_, [this](abi::RunContext) { end_.Wait(); }, {chain_}, {last_});
  begin_.Open();
  eng_->WaitForVar(chain_);
  EXPECT_EQ(functions_.kept(), 0);
}

TEST_P(ReturnsTest, NoneIsKeptBehindAWaitBesideWhichOthersPush) {
  PushMarked(10);
  {
    const Returns::Pause pause;
    RunAll();  // pushes, as another thread may while this one waits
    EXPECT_EQ(functions_.kept(), 10);
  }
  EXPECT_EQ(functions_.here(), 10);
}

TEST_P(ReturnsTest, WorkersDestroyThemWhileTheThreadThatPushesWaits) {
  PushMarked(200);
  Sync(*eng_, [this](abi::RunContext) { ran_.Open(); }, {chain_}, {last_});
  Sync(*eng_, [this](abi::RunContext) { end_.Wait(); }, {}, {last_});
  const Returns::Pause pause;
  begin_.Open();
  ran_.Wait();
  EXPECT_EQ(functions_.elsewhere(), 200);
}

// A program that does not come back for a long time does not keep the arrays of its last ops.
TEST_P(ReturnsTest, NoneIsKeptOnceAllHaveRun) {
  PushMarked(10);
  begin_.Open();
  EXPECT_TRUE(DropInOf(*eng_).engine().Drain(std::chrono::minutes(1)));  // not a wait of MXNet's
  EXPECT_EQ(functions_.kept(), 0);
}

TEST_P(ReturnsTest, ASkippedFunctionComesBackAsWell) {
  abi::Var* const broken = NewVar();
  Fail(*eng_, broken);
  Sync(*eng_, [mark = functions_.Mark()](abi::RunContext) {}, {broken}, {chain_});
  PushMarked(1);
  RunAll();
  EXPECT_EQ(functions_.kept(), 2);
  Sync(*eng_, [](abi::RunContext) {}, {}, {last_});
  EXPECT_EQ(functions_.here(), 2);
  EXPECT_EQ(TextOf([&] { eng_->WaitForVar(broken); }), "broken");
}

TEST_P(ReturnsTest, ADestructorMayPush) {
  abi::Var* const other = NewVar();
  bool pushed = false;
  Sync(*eng_,
       [mark = std::shared_ptr<void>(&pushed,
                                     [&](void*) {
                                       Sync(*eng_, [mark = functions_.Mark()](abi::RunContext) {}, {}, {other});
                                       pushed = true;
                                     })](abi::RunContext) {},
       {}, {chain_});
  RunAll();
  end_.Open();
  eng_->WaitForAll();
  EXPECT_TRUE(pushed);
  eng_->WaitForAll();
  EXPECT_EQ(functions_.kept(), 0);
}

// Threads push, wait, and leave; each function is destroyed once.
TEST_P(ReturnsTest, ThreadsShareWhatComesBack) {
  begin_.Open();
  const uint64_t seed = engine::test::Seed();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      abi::Var* const own = eng_->NewVariable();
      for (int i = 0; i < (engine::test::kSanitized ? 500 : 5000); ++i) {
        abi::Var* const to = random() % 4 ? own : chain_;
        if (random() % 2) {
          Sync(*eng_, [mark = functions_.Mark()](abi::RunContext) {}, {}, {to});
        } else {
          Async(*eng_, [mark = functions_.Mark()](abi::RunContext, abi::OnComplete done) { Call(done); }, {}, {to});
        }
        if (random() % 64 == 0) eng_->WaitForVar(to);
      }
      Delete(*eng_, own);
    });
  for (std::thread& thread : threads) thread.join();
  eng_->WaitForAll();
  EXPECT_EQ(functions_.kept(), 0);
}

}  // namespace
}  // namespace engine_mxnet::test
