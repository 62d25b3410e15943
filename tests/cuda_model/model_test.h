// What tests of the model, and of the cuda backend on it, start from. They are skipped where the real runtime is.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "control.h"
#include "engine/device/device.h"

namespace engine::test {

// For bodies of ops: a failure fails the op.
inline void Must(DeviceStatus status) {
  if (!status.ok()) throw DeviceError(std::move(status));
}

class CudaModelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!CUDA_MODEL(cudaModelFail)) GTEST_SKIP() << "the real CUDA runtime is loaded, not the model of it";
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);  // a planted failure may have kept somebody from going back
    before_ = CUDA_MODEL(cudaModelLiveObjects)();
  }
  void TearDown() override {
    if (!CUDA_MODEL(cudaModelFail)) return;
    Fail(nullptr, 0, cudaSuccess, false);
    EXPECT_EQ(Live(), 0) << "left on the device";
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left for whoever asks next";
  }

  static void Fail(const char* function, long nth, cudaError_t error, bool sticky) {
    CUDA_MODEL(cudaModelFail)(function, nth, error, sticky);
  }
  // The function that a planted failure came to; empty: it has not come.
  static std::string Failed() {
    const char* name = CUDA_MODEL(cudaModelFailed)();
    return name ? name : "";
  }
  static long Violations() { return CUDA_MODEL(cudaModelViolations)(); }
  static std::string LastViolation() { return CUDA_MODEL(cudaModelLastViolation)(); }
  static void Forgive() { CUDA_MODEL(cudaModelForgive)(); }
  static int Live() { return CUDA_MODEL(cudaModelLiveObjects)() - before_; }  // made by this test
  static long Calls(const char* function) { return CUDA_MODEL(cudaModelCalls)(function); }
  static void Revive() { CUDA_MODEL(cudaModelReviveDevices)(); }

 private:
  static inline int before_ = 0;
};

}  // namespace engine::test
