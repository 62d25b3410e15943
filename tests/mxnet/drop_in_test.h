// What each test of the drop-in starts from: an engine from a factory, as libmxnet.so gets it, with a number of workers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mxnet/abi.h"
#include "mxnet/drop_in.h"
#include "mxnet/failures.h"
#include "support/gate.h"
#include "support/sanitizers.h"

namespace engine_mxnet::test {

using engine::test::Counter;
using engine::test::Gate;

enum class Kind { kPerDevice, kPooled, kNaive };

inline std::unique_ptr<abi::Engine> Make(int workers, Kind kind = Kind::kPerDevice) {
  setenv("MXNET_CPU_WORKER_NTHREADS", std::to_string(workers).c_str(), 1);
  setenv("ENGINE_SPIN_US", "0", 1);
  mxnet::Engine* made = kind == Kind::kPerDevice ? mxnet::engine::CreateThreadedEnginePerDevice()
                        : kind == Kind::kPooled  ? mxnet::engine::CreateThreadedEnginePooled()
                                                 : mxnet::engine::CreateNaiveEngine();
  return std::unique_ptr<abi::Engine>(reinterpret_cast<abi::Engine*>(made));
}

// With MXNet's default arguments.
inline void Sync(abi::Engine& eng, abi::SyncFn fn, const abi::Vars& reads, const abi::Vars& updates,
                 abi::Property property = abi::Property::kNormal, const char* name = nullptr, int priority = 0) {
  eng.PushSync(std::move(fn), {}, reads, updates, property, priority, name);
}
inline void Async(abi::Engine& eng, abi::AsyncFn fn, const abi::Vars& reads, const abi::Vars& updates,
                  const char* name = nullptr) {
  eng.PushAsync(std::move(fn), {}, reads, updates, abi::Property::kNormal, 0, name, false);
}
inline void Call(const abi::OnComplete& done, const dmlc::Error* error = nullptr) {
  done.call(done.engine, done.param, error);
}
inline void Delete(abi::Engine& eng, abi::Var* var) {
  eng.DeleteVariable([](abi::RunContext) {}, {}, var);
}
inline void Fail(abi::Engine& eng, abi::Var* var, const char* text = "broken") {
  Sync(eng, [text](abi::RunContext) { throw dmlc::Error(text); }, {}, {var});
}

// What `f` throws; "" if nothing.
template <class F>
std::string TextOf(F&& f) {
  try {
    f();
  } catch (const dmlc::Error& error) {
    return error.what();
  }
  return "";
}

inline DropIn& DropInOf(abi::Engine& eng) { return static_cast<DropIn&>(eng); }
inline Failures& FailuresOf(abi::Engine& eng) { return DropInOf(eng).failures(); }

class DropInTest : public testing::TestWithParam<int> {
 protected:
  DropInTest() : eng_(Make(GetParam())) {}
  ~DropInTest() override {
    for (abi::Var* var : vars_) Delete(*eng_, var);
    TextOf([&] { eng_->WaitForAll(); });
  }
  abi::Var* NewVar() { return vars_.emplace_back(eng_->NewVariable()); }

  const std::unique_ptr<abi::Engine> eng_;
  std::vector<abi::Var*> vars_;
};
#define WITH_WORKERS(Suite)           \
  class Suite : public DropInTest {}; \
  INSTANTIATE_TEST_SUITE_P(Workers, Suite, testing::Values(1, 2, 4))

}  // namespace engine_mxnet::test
