// What every test of the engine starts from: options by number of workers, errors caught as values, and the suite
// that is run with each number of workers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "engine/engine.h"
#include "engine/spi/redirect.h"
#include "support/gate.h"
#include "support/log.h"
#include "support/sanitizers.h"

namespace engine::test {

using namespace std::chrono_literals;

// No spinning (the machines of CI have few cores), and no noise about errors that a test left on purpose.
inline EngineOptions Quiet(int workers) {
  EngineOptions o;
  o.workers = workers;
  o.spin = 0us;
  o.on_unobserved = [](const OpError&) {};
  return o;
}

// The same, with what nobody waited for kept in `log`.
inline EngineOptions Reporting(int workers, Log& log) {
  EngineOptions o = Quiet(workers);
  o.on_unobserved = [&log](const OpError& e) { log.Add(e.what()); };
  return o;
}

template <class E, class F>
E Caught(F&& f, const char* what) {
  try {
    f();
  } catch (const E& e) {
    return e;
  } catch (const std::exception& e) {
    ADD_FAILURE() << "expected " << what << ", got: " << e.what();
    throw;
  }
  ADD_FAILURE() << "expected " << what << ", and nothing was thrown";
  throw std::logic_error("nothing was thrown");
}
// The OpError, or the text of the UsageError, that `f` throws.
template <class F>
OpError ErrorOf(F&& f) {
  return Caught<OpError>(std::forward<F>(f), "an OpError");
}
template <class F>
std::string RefusalOf(F&& f) {
  return Caught<UsageError>(std::forward<F>(f), "a UsageError").what();
}
template <class E>
bool CausedBy(const OpError& error) {
  try {
    error.RethrowCause();
  } catch (const E&) {
    return true;
  } catch (...) {
    return false;
  }
}
inline testing::AssertionResult Has(const std::string& text, const std::string& part) {
  if (text.find(part) != text.npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no \"" << part << "\" in:\n" << text;
}

// Pushes that fail and that hold.
inline void Fail(Engine& eng, const Var& var, const char* text = "broken") {
  eng.Push({.name = "fail", .writes = {var}}, [text] { throw std::runtime_error(text); });
}
inline HeldOp HoldWrite(Engine& eng, const Var& var) {
  return eng.PushHeld({.name = "held", .writes = {var}}, [] {});
}
inline HeldOp HoldRead(Engine& eng, const Var& var) {
  return eng.PushHeld({.name = "held", .reads = {var}}, [] {});
}
// Runs what can run and says whether all writes of `var` are done. With no workers the call itself runs them.
inline bool Done(Engine& eng, const Var& var) { return eng.WaitFor(var, 0ns); }

// A suite that is run with no, one, two, four and eight workers.
class WorkersTest : public testing::TestWithParam<int> {
 protected:
  int workers() const { return GetParam(); }
};
#define WITH_ALL_WORKERS(suite)                                            \
  class suite : public ::engine::test::WorkersTest {};                     \
  INSTANTIATE_TEST_SUITE_P(Workers, suite, testing::Values(0, 1, 2, 4, 8), \
                           [](const auto& instance) { return std::to_string(instance.param); })

}  // namespace engine::test
