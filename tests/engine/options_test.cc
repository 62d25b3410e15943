// Options: checked when the engine is made; the environment is read in one place. Bad input names what is allowed.
#include <cstdlib>

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

TEST(OptionsTest, DefaultIsOneWorkerACore) {
  Engine eng;
  EXPECT_EQ(eng.workers(), static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_EQ(eng.policy(), Policy::kThreaded);
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
    EXPECT_TRUE(Has(text, "[-1, 4096]"));
  }
  Env policy("ENGINE_POLICY", "fastest");
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

}  // namespace
}  // namespace engine::test
