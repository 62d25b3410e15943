// The drop-in's options: what MXNet's programs get where the environment says nothing, and what it says instead.
#include "mxnet/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace engine_mxnet::test {
namespace {

using namespace std::chrono_literals;

// A variable of the environment, as it was before when this goes. Null: not set.
class Env {
 public:
  Env(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before, was_set_ = true;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Env() { was_set_ ? setenv(name_, before_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* const name_;
  std::string before_;
  bool was_set_ = false;
};

TEST(DropInOptionsTest, IdleWorkersLookForWorkForLongerThanACallFromPythonTakes) {
  const Env spin("ENGINE_SPIN_US", nullptr);
  EXPECT_EQ(OptionsFromEnv().spin, 1ms);
  EXPECT_EQ(::engine::EngineOptions::FromEnv().spin, 50us);
}

TEST(DropInOptionsTest, TheEnvironmentOverridesHowLongTheyLook) {
  for (const int us : {0, 20, 7}) {
    const Env spin("ENGINE_SPIN_US", std::to_string(us).c_str());
    EXPECT_EQ(OptionsFromEnv().spin, std::chrono::microseconds(us));
  }
  const Env spin("ENGINE_SPIN_US", "long");
  EXPECT_THROW(OptionsFromEnv(), ::engine::UsageError);
}

TEST(DropInOptionsTest, MxnetsVariableSaysHowManyWorkersThereAre) {
  const Env workers("ENGINE_WORKERS", "5");
  {
    const Env none("MXNET_CPU_WORKER_NTHREADS", nullptr);
    EXPECT_EQ(OptionsFromEnv().workers, 1);
  }
  const Env three("MXNET_CPU_WORKER_NTHREADS", "3");
  EXPECT_EQ(OptionsFromEnv().workers, 3);
}

TEST(DropInOptionsTest, TheEngineTypeIsHiddenFromMxnetOnlyWhileItLooks) {
  const Env type("MXNET_ENGINE_TYPE", "inline");
  {
    const HiddenEngineType hidden;
    EXPECT_EQ(std::getenv("MXNET_ENGINE_TYPE"), nullptr);
    EXPECT_EQ(PolicyOfEngineType(), ::engine::Policy::kInline);
  }
  EXPECT_STREQ(std::getenv("MXNET_ENGINE_TYPE"), "inline");
  const Env other("MXNET_ENGINE_TYPE", "NaiveEngine");
  const HiddenEngineType not_hidden;
  EXPECT_STREQ(std::getenv("MXNET_ENGINE_TYPE"), "NaiveEngine");
}

TEST(DropInOptionsTest, ScratchMemoryIsPrivateOrSharedAndNothingElse) {
  const Env spaces("MXNET_CPU_TEMP_COPY", nullptr);
  for (const auto& [value, is_private] : {std::pair("shared", false), {"private", true}, {"", true}}) {
    const Env scratch("ENGINE_MXNET_SCRATCH", value);
    ChooseScratch(2);
    EXPECT_EQ(ScratchIsPrivate(), is_private);
    EXPECT_EQ(std::getenv("MXNET_CPU_TEMP_COPY") != nullptr, !is_private);
    unsetenv("MXNET_CPU_TEMP_COPY");
  }
  const Env scratch("ENGINE_MXNET_SCRATCH", "none");
  EXPECT_THROW(ChooseScratch(2), ::engine::UsageError);
  EXPECT_THROW(CheckEnv(), ::engine::UsageError);
}

}  // namespace
}  // namespace engine_mxnet::test
