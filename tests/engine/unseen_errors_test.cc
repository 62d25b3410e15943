// Contract 3, second half: no error is lost. WaitAll and shutdown report what no wait has shown.
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(UnseenErrorsTest);

TEST_P(UnseenErrorsTest, WaitAllReportsOpsThatWriteNothing) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  eng.Push({.name = "check", .reads = {a}}, [] { throw std::runtime_error("checksum"); });
  EXPECT_EQ(ErrorOf([&] { eng.WaitAll(); }).op(), "check");
  eng.WaitAll();  // seen now
  eng.Push({.name = "bare"}, [] { throw 1; });
  EXPECT_EQ(ErrorOf([&] { eng.WaitAll(); }).op(), "bare");
}

// With a failure that has been seen goes the program's exception, whose destructor may call the engine.
TEST_P(UnseenErrorsTest, AnExceptionThatHasBeenSeenMayCallTheEngineAtItsEnd) {
  Engine eng(Quiet(workers()));
  struct Calls : std::runtime_error {
    Calls(Engine* engine, std::atomic<int>* calls)
        : std::runtime_error("planted"), last(new int(0), [engine, calls](int* p) {
            delete p;
            *calls += engine->stats().unseen_errors == 0;
          }) {}
    std::shared_ptr<int> last;
  };
  std::atomic<int> called{0};
  Var a = eng.NewVar("a");
  eng.Push({.writes = {a}}, [&] { throw Calls(&eng, &called); });
  EXPECT_EQ(ErrorOf([&] { eng.Wait(a); }).op(), "");
  eng.ClearError(a);
  eng.WaitAll();
  EXPECT_EQ(called, 1);
}

TEST_P(UnseenErrorsTest, WaitAllReportsTheFirstThatNobodyHasSeen) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  for (int i = 0; i < 3; ++i)
    eng.Push({.writes = {a}}, [i] { throw std::runtime_error("number " + std::to_string(i)); });
  EXPECT_TRUE(Has(ErrorOf([&] { eng.Wait(a); }).what(), "number 2"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "number 0"));
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "number 1"));
  eng.WaitAll();
}

TEST_P(UnseenErrorsTest, SurviveWritesAndClearing) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Fail(eng, a, "overwritten");
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "overwritten"));
  Fail(eng, b, "cleared");
  eng.ClearError(b);
  eng.Wait(b);
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "cleared"));
}

TEST_P(UnseenErrorsTest, SurviveTheDeletionOfTheVar) {
  Engine eng(Quiet(workers()));
  {
    Var a = eng.NewVar("a");
    Fail(eng, a, "of a Var that is gone");
  }
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "of a Var that is gone"));
}

TEST_P(UnseenErrorsTest, SixtyFourAreKeptWholeAndTheRestCounted) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  for (int i = 0; i < 100; ++i) eng.Push({.writes = {a}}, [i] { throw i; });
  eng.WaitToWrite(eng.NewVar());
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(CausedBy<int>(ErrorOf([&] { eng.WaitAll(); }))) << i;
  EXPECT_TRUE(Has(ErrorOf([&] { eng.WaitAll(); }).what(), "36 further errors"));
  eng.WaitAll();
  EXPECT_EQ(eng.stats().unseen_errors, 0u);
}

TEST_P(UnseenErrorsTest, GoToTheReporterAtShutdown) {
  Log log;
  {
    Engine eng(Reporting(workers(), log));
    Var a = eng.NewVar("a"), b = eng.NewVar("b");
    Fail(eng, a, "nobody looked");
    eng.Push({}, [] { throw std::runtime_error("wrote nothing"); });
    Fail(eng, b, "somebody looked");
    EXPECT_THROW(eng.Wait(b), OpError);
  }
  EXPECT_EQ(log.size(), 2u);
  EXPECT_TRUE(log.Contains("nobody looked"));
  EXPECT_TRUE(log.Contains("wrote nothing"));
}

TEST_P(UnseenErrorsTest, ErrorSeenThroughADependentIsSeen) {
  Log log;
  {
    Engine eng(Reporting(workers(), log));
    Var a = eng.NewVar("a"), b = eng.NewVar("b");
    Fail(eng, a);
    eng.Push({.reads = {a}, .writes = {b}}, [] {});
    EXPECT_THROW(eng.Wait(b), OpError);
    eng.WaitAll();
  }
  EXPECT_EQ(log.size(), 0u);
}

TEST_P(UnseenErrorsTest, ReporterThatThrowsLosesNoOtherReport) {
  Log log;
  {
    EngineOptions o = Quiet(workers());
    o.on_unobserved = [&](const OpError& e) {
      log.Add(e.what());
      throw std::runtime_error("a bad reporter");
    };
    Engine eng(o);
    for (int i = 0; i < 3; ++i) eng.Push({}, [] { throw 1; });
  }
  EXPECT_EQ(log.size(), 3u);
}

TEST_P(UnseenErrorsTest, WaitThatDoesNotFailShowsNothing) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  Fail(eng, a);
  eng.Push({.writes = {b}}, [] {});
  eng.Wait(b);
  EXPECT_THROW(eng.WaitAll(), OpError);
}

}  // namespace
}  // namespace engine::test
