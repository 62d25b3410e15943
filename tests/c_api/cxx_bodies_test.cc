// Bodies written in C++ behind the C API: what they throw fails their op and never crosses the boundary.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "engine/c_api.h"
#include "engine/device/device.h"
#include "engine/error.h"
#include "support/sanitizers.h"

namespace {

class CxxBodies : public testing::Test {
 protected:
  CxxBodies() {
    EXPECT_EQ(EngineCreate(nullptr, &engine_), ENGINE_OK);
    EXPECT_EQ(EngineVarNew(engine_, "a", &var_), ENGINE_OK);
    op_.struct_size = sizeof op_;
    op_.name = "throws";
    op_.site = ENGINE_HERE;
    op_.writes = &var_;
    op_.num_writes = 1;
  }
  ~CxxBodies() override {
    EXPECT_EQ(EngineVarFree(var_), ENGINE_OK);
    EXPECT_EQ(EngineDestroy(engine_), ENGINE_OK);
  }
  void ExpectException(const char* text) {
    ASSERT_EQ(EngineWait(engine_, var_, ENGINE_HERE), ENGINE_E_OP);
    const EngineOpError* error = EngineGetLastOpError();
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->cause, ENGINE_E_EXCEPTION);
    EXPECT_STREQ(error->op, "throws");
    EXPECT_NE(std::string(error->cause_text).find(text), std::string::npos) << error->cause_text;
  }

  EngineHandle engine_ = nullptr;
  EngineVar var_ = nullptr;
  EngineOpDesc op_ = {};
};

TEST_F(CxxBodies, ThrownExceptionFailsTheOp) {
  const EngineSyncFn body = [](EngineContext*, void*) -> int32_t { throw std::runtime_error("out of cheese"); };
  EXPECT_EQ(EnginePush(engine_, &op_, body, nullptr, nullptr), ENGINE_OK);
  ExpectException("out of cheese");
}

TEST_F(CxxBodies, AnythingMayBeThrown) {
  const EngineSyncFn number = [](EngineContext*, void*) -> int32_t { throw 42; };
  EXPECT_EQ(EnginePush(engine_, &op_, number, nullptr, nullptr), ENGINE_OK);
  ExpectException("int");
  const EngineSyncFn text = [](EngineContext*, void*) -> int32_t { throw std::string("just text"); };
  EXPECT_EQ(EnginePush(engine_, &op_, text, nullptr, nullptr), ENGINE_OK);
  ExpectException("just text");
}

TEST_F(CxxBodies, AsyncBodyThatThrowsFailsTheOpAndGivesItsReferenceUp) {
  static EngineCompletion kept;
  const EngineAsyncFn body = [](EngineContext*, EngineCompletion done, void*) {
    kept = done;
    throw std::runtime_error("connection lost");
  };
  EXPECT_EQ(EnginePushAsync(engine_, &op_, body, nullptr, nullptr), ENGINE_OK);
  ExpectException("connection lost");
  EXPECT_EQ(EngineWaitAll(engine_), ENGINE_OK);
  EXPECT_EQ(EngineCompletionDone(kept), ENGINE_E_COMPLETION);
}

TEST_F(CxxBodies, ParallelForRethrowsIntoAStatus) {
  if (engine::test::kUnderTsan) GTEST_SKIP() << "oneTBB's library is not instrumented";
  const EngineSyncFn body = [](EngineContext* context, void*) -> int32_t {
    const EngineRangeFn piece = [](void*, int64_t, int64_t) -> int32_t { throw std::runtime_error("bad piece"); };
    EXPECT_EQ(EngineContextParallelFor(context, 10, 1, piece, nullptr), ENGINE_E_EXCEPTION);
    EXPECT_STREQ(EngineGetLastError(), "bad piece");
    return 0;
  };
  EXPECT_EQ(EnginePush(engine_, &op_, body, nullptr, nullptr), ENGINE_OK);
  EXPECT_EQ(EngineWait(engine_, var_, ENGINE_HERE), ENGINE_OK);
}

template <class Error>
int32_t Throw(EngineContext*, void*) {
  throw Error("planned");
}

// Every row of the table of errors has a status, and that status has a name.
TEST_F(CxxBodies, EachKindOfErrorHasItsStatus) {
  const auto expect = [&](EngineSyncFn body, EngineStatus cause, const char* name) {
    EXPECT_EQ(EnginePush(engine_, &op_, body, nullptr, nullptr), ENGINE_OK);
    ASSERT_EQ(EngineWait(engine_, var_, ENGINE_HERE), ENGINE_E_OP);
    EXPECT_EQ(EngineGetLastOpError()->cause, cause) << name;
    EXPECT_STREQ(EngineStatusName(cause), name);
  };
#define EXPECT_STATUS(Class, STATUS, ...) expect(&Throw<engine::Class>, ENGINE_E_##STATUS, "ENGINE_E_" #STATUS);
  ENGINE_PLAIN_ERRORS(EXPECT_STATUS)
#undef EXPECT_STATUS
  const EngineSyncFn device = [](EngineContext*, void*) -> int32_t {
    throw engine::DeviceError(engine::DeviceStatus::Fail(engine::DeviceCode::kOutOfMemory, false, 0, "planned"));
  };
  expect(device, ENGINE_E_DEVICE, "ENGINE_E_DEVICE");
  expect(&Throw<engine::EndOfData>, ENGINE_E_END_OF_DATA, "ENGINE_E_END_OF_DATA");
  expect(&Throw<engine::Error>, ENGINE_E_EXCEPTION, "ENGINE_E_EXCEPTION");
}

}  // namespace
