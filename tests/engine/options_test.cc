// Options: checked when the engine is made; the environment is read in one place. Bad input names what is allowed.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/processors.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

struct Env {
  Env(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Env() { unsetenv(name_); }
  const char* name_;
};

std::string Refused(void (*change)(EngineOptions&)) {
  EngineOptions o = Quiet(1);
  change(o);
  return RefusalOf([&] { Engine eng(o); });
}

TEST(OptionsTest, DefaultIsOneWorkerACoreThatTheProgramMayUse) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::ifstream own("/proc/self/cgroup");
  Engine eng;
  EXPECT_EQ(eng.workers(), std::min(CPU_COUNT(&allowed), detail::GroupProcessors(own, "/sys/fs/cgroup")));
  EXPECT_EQ(eng.policy(), Policy::kThreaded);

  std::thread([] {  // as in a container, or under taskset
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(Engine().workers(), 1);
    EXPECT_EQ(EngineOptions::DefaultWorkers(), 1);
  })
      .join();
}

// Containers are given time, and not processors.
TEST(OptionsTest, TheQuotasOfControlGroupsBoundIt) {
  const std::filesystem::path root = testing::TempDir() + "groups" + std::to_string(getpid());
  const auto write = [&](const char* path, const char* text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  };
  const auto processors = [&](const char* text) {
    std::istringstream groups(text);
    return detail::GroupProcessors(groups, root);
  };
  write("cpu.max", "max 100000\n");
  write("a/cpu.max", "250000 100000\n");
  write("a/b/cpu.max", "max 100000\n");
  write("a/b/c/cpu.max", "1000 100000\n");
  EXPECT_EQ(processors("0::/\n"), detail::kUnbounded);
  EXPECT_EQ(processors("0::/a/b\n"), 3);
  EXPECT_EQ(processors("0::/a/b/c\n"), 1);
  EXPECT_EQ(processors("0::/a/gone\n"), 3);  // not seen from inside of a container
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  write("cpu/jobs/cpu.cfs_quota_us", "400000\n");
  write("cpu/jobs/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(processors("3:cpuset:/jobs\n2:cpu,cpuacct:/jobs\n0::/\n"), 4);
  EXPECT_EQ(processors("3:cpuset:/jobs\n2:cpu,cpuacct:/\n"), detail::kUnbounded);
  EXPECT_EQ(processors("3:cpuset:/jobs\nnonsense\n"), detail::kUnbounded);
  write("a/cpu.max", "nonsense\n");
  EXPECT_EQ(processors("0::/a\n"), detail::kUnbounded);
  EXPECT_EQ(processors(""), detail::kUnbounded);
  std::filesystem::remove_all(root);
}

TEST(OptionsTest, ValuesOutOfRangeAreRefusedByName) {
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.workers = -2; }), "workers = -2"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.workers = 100000; }), "workers = 100000"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.intra_op_threads = -7; }), "intra_op_threads"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.io_threads = 0; }), "io_threads"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.max_pending = 0; }), "max_pending"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.hard_max_pending = 1; }), "hard_max_pending"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.max_spare_threads = -1; }), "max_spare_threads"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.spin = -1us; }), "spin"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.drain_timeout = -1ms; }), "drain_timeout"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.stall_timeout = -1ms; }), "stall_timeout"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.streams_per_device = 33; }), "streams_per_device = 33"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.start_step = -1; }), "start_step = -1"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.stop_step = 1 << 24; }), "allowed: 0 to 16777215"));
}

// What nanoseconds cannot hold is for ever.
static_assert(Timeout(std::chrono::milliseconds::max()).nanoseconds() == Timeout::kForever);
static_assert(Timeout(std::chrono::milliseconds::min()).nanoseconds() < 0ns);
static_assert(Timeout(std::chrono::hours(2562047)).nanoseconds() == std::chrono::hours(2562047));
static_assert(Timeout(std::chrono::hours(2562048)).nanoseconds() == Timeout::kForever);
static_assert(Timeout(std::chrono::duration<uint64_t>(UINT64_MAX)).nanoseconds() == Timeout::kForever);
static_assert(Timeout(std::chrono::duration<int, std::pico>(1999)).nanoseconds() == 1ns);
static_assert(Timeout(-1ns).nanoseconds() == -1ns);

TEST(OptionsTest, LongestWaitsAreForEver) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("a");
  for (int i = 0; i < 2; ++i) {
    Gate gate;
    eng.Push({.updates = {a}}, [&] { gate.Wait(); });
    std::thread opener([&] { gate.Open(); });
    if (i == 0) {
      EXPECT_TRUE(eng.WaitFor(a, std::chrono::milliseconds::max()));
    } else {
      EXPECT_TRUE(eng.WaitAllFor(std::chrono::hours::max()));
    }
    opener.join();
  }
}

TEST(OptionsTest, LongestDrainTimeoutIsForEver) {
  Log log;
  Slot<Completion> slot;
  std::thread completes([&] {
    Completion done = slot.Take();
    Gate().WaitFor(50ms);  // a timeout that has overflowed is over at once
    done();
  });
  {
    EngineOptions o = Reporting(1, log);
    o.drain_timeout = std::chrono::milliseconds::max();
    Engine eng(o);
    eng.PushAsync({}, [&](RunContext&, Completion done) { slot.Put(std::move(done)); });
  }
  completes.join();
  EXPECT_EQ(log.size(), 0u);
}

TEST(OptionsTest, LongestStallTimeoutNeverReports) {
  std::atomic<int> reports{0};
  {
    EngineOptions o = Quiet(1);
    o.stall_timeout = std::chrono::milliseconds::max();
    o.on_stall = [&](std::string_view) { ++reports; };
    Engine eng(o);
    Var a = eng.NewVar("a");
    HeldOp held = HoldWrite(eng, a);
    EXPECT_FALSE(eng.WaitFor(a, 50ms));
  }
  EXPECT_EQ(reports, 0);
}

TEST(OptionsTest, LongestSpinStillEnds) {
  EngineOptions o = Quiet(1);
  o.spin = std::chrono::microseconds::max();
  Engine eng(o);
  Var a = eng.NewVar("a");
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
  {
    Gate gate;
    eng.Push({.writes = {a}}, [&] { gate.Wait(); });
    EXPECT_FALSE(eng.WaitFor(a, 1ms));
    EXPECT_FALSE(eng.WaitAllFor(1ms));
    gate.Open();
    eng.Wait(a);
  }
  eng.WaitAll();
}

TEST(OptionsTest, BadPoolsAreRefusedByName) {
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.pools = {{.name = ""}}; }), "without a name"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.pools = {{.name = "x"}, {.name = "x"}}; }), "two pools named 'x'"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.pools = {{.name = "x", .threads = 0}}; }), "'x' has 0 threads"));
  EXPECT_TRUE(Has(Refused([](EngineOptions& o) { o.pools.resize(40, {.name = "x"}); }), "pools.size() = 40"));
}

TEST(OptionsTest, EnvironmentOverridesTheDefaults) {
  Env workers("ENGINE_WORKERS", "3"), io("ENGINE_IO_THREADS", "2"), pending("ENGINE_MAX_PENDING", "99"),
      spin("ENGINE_SPIN_US", "0"), stall("ENGINE_STALL_TIMEOUT_MS", "1234"), policy("ENGINE_POLICY", "naive");
  const EngineOptions o = EngineOptions::FromEnv();
  EXPECT_EQ(o.workers, 3);
  EXPECT_EQ(o.io_threads, 2);
  EXPECT_EQ(o.max_pending, 99u);
  EXPECT_EQ(o.spin, 0us);
  EXPECT_EQ(o.stall_timeout, 1234ms);
  EXPECT_EQ(o.policy, Policy::kNaive);
}

TEST(OptionsTest, EnvironmentOverridesTheDefaultsThatAProgramPrefers) {
  EngineOptions preferred;
  preferred.workers = 7;
  preferred.spin = 60us;
  preferred.thread_name = "mine";
  Env workers("ENGINE_WORKERS", "3");
  const EngineOptions o = EngineOptions::FromEnv(preferred);
  EXPECT_EQ(o.workers, 3);
  EXPECT_EQ(o.spin, 60us);
  EXPECT_EQ(o.thread_name, "mine");
  preferred.max_pending = size_t{1} << 40;
  EXPECT_EQ(EngineOptions::FromEnv(preferred).hard_max_pending, size_t{1} << 40);
}

TEST(OptionsTest, EnvironmentIsReadNowhereElse) {
  Env workers("ENGINE_WORKERS", "nonsense"), policy("ENGINE_POLICY", "nonsense");
  Engine eng(Quiet(1));
  EXPECT_EQ(eng.workers(), 1);
}

TEST(OptionsTest, EmptyEnvironmentIsTheDefaults) {
  const EngineOptions from_env = EngineOptions::FromEnv(), defaults;
  EXPECT_EQ(from_env.workers, defaults.workers);
  EXPECT_EQ(from_env.max_pending, defaults.max_pending);
  EXPECT_EQ(from_env.policy, defaults.policy);
}

TEST(OptionsTest, BadEnvironmentIsRefusedWithWhatIsAllowed) {
  for (const char* bad : {"", "two", "3x", "-2", "99999999999999999999", " 1"}) {
    Env workers("ENGINE_WORKERS", bad);
    const std::string text = RefusalOf([] { EngineOptions::FromEnv(); });
    EXPECT_TRUE(Has(text, "ENGINE_WORKERS='" + std::string(bad) + "'"));
    EXPECT_TRUE(Has(text, "allowed: an integer, -1 to 4096"));
  }
  Env policy("ENGINE_POLICY", "fastest");
  EXPECT_TRUE(Has(RefusalOf([] { EngineOptions::FromEnv(); }), "ENGINE_POLICY='fastest'"));
  EXPECT_TRUE(Has(RefusalOf([] { EngineOptions::FromEnv(); }), "'threaded', 'inline', 'naive'"));
}

TEST(OptionsTest, PoliciesAreListedWithHelp) {
  EXPECT_GE(Policies().size(), 2u);
  for (const PolicyInfo& p : Policies()) {
    EXPECT_EQ(PolicyByName(p.name), p.policy);
    EXPECT_FALSE(p.help.empty());
  }
  EXPECT_TRUE(Has(RefusalOf([] { PolicyByName("quick"); }), "'quick'"));
}

// Whoever never chooses cost_model may say what he likes of it.
TEST(OptionsTest, StepsAreCheckedWhenCostModelIsChosen) {
  EngineOptions o = Quiet(1);
  o.start_step = o.stop_step = 8;
  {
    Engine eng(o);
    const std::string text = RefusalOf([&] { eng.SetPolicy(Policy::kCostModel); });
    EXPECT_TRUE(Has(text, "start_step = 8 and stop_step = 8"));
    EXPECT_TRUE(Has(RefusalOf([&] {
                      (void)eng.EnterPolicy({Policy::kCostModel, {.stop_step = 3}});
                    }),
                    "stop_step = 3"));
    EXPECT_EQ(eng.policy(), Policy::kThreaded);
    eng.SetPolicy(Policy::kCostModel, {.stop_step = 9});
  }
  o.policy = Policy::kCostModel;
  EXPECT_TRUE(Has(RefusalOf([&] { Engine eng(o); }), "start_step = 8 and stop_step = 8"));
  const Env start("START_NODE_STATS_STEP", "300");
  Engine eng(EngineOptions::FromEnv());
  EXPECT_TRUE(Has(RefusalOf([&] { eng.SetPolicy(Policy::kCostModel); }), "start_step = 300 and stop_step = 200"));
}

// The largest value that an environment variable and a front end may say fits its option.
TEST(OptionsTest, EachNumberIsAllowedUpToItsLastValue) {
  EngineOptions o = Quiet(1);
  o.max_pending = o.hard_max_pending = SIZE_MAX;
  o.max_spare_threads = INT_MAX;
  o.stop_step = 16777215;
  Engine eng(o);
  const Env pending("ENGINE_MAX_PENDING", "9223372036854775807");
  EXPECT_EQ(EngineOptions::FromEnv().max_pending, size_t{INT64_MAX});
}

TEST(OptionsTest, NamesMadeAtRunTimeAreKept) {
  Name name;
  {
    std::string text = "made at run time";
    name = Name::Intern(text);
    text = "overwritten";
  }
  EXPECT_STREQ(name.c_str(), "made at run time");
  EXPECT_EQ(Name::Intern("made at run time").c_str(), name.c_str());
}

TEST(OptionsTest, VersionIsThreeNumbers) {
  int a = -1, b = -1, c = -1;
  EXPECT_EQ(sscanf(Version(), "%d.%d.%d", &a, &b, &c), 3) << Version();
}

TEST(OptionsTest, WhatTheEnvironmentMaySayIsAccepted) {
  Env pending("ENGINE_MAX_PENDING", "1099511627776"), workers("ENGINE_WORKERS", "1");
  Engine eng(EngineOptions::FromEnv());  // above the default of hard_max_pending, which goes up with it
  EXPECT_EQ(EngineOptions::FromEnv().hard_max_pending, size_t{1} << 40);
}

}  // namespace
}  // namespace engine::test
