// Debug checks on the cuda backend: bodies that block the host, as CUPTI sees them.
#include "engine/bulk.h"
#include "engine/device/cuda_stream.h"
#include "engine/device/device_memory.h"
#include "kernels.h"
#include "model_test.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

class CudaModelChecks : public CudaModelTest {
 protected:
  void SetUp() override {
    CudaModelTest::SetUp();
    if (IsSkipped()) return;
    device_ = MakeCudaDevice(0, true);
    EngineOptions options = Quiet(1);
    options.devices = {device_};
    eng_.emplace(options);
    x_ = eng_->NewVar("x");
  }
  void TearDown() override {
    if (!IsSkipped()) {
      eng_->WaitAll();
      x_ = {};
      eng_.reset();
      device_.reset();
      EXPECT_EQ(Violations(), 0) << LastViolation();
    }
    CudaModelTest::TearDown();
  }
  // What becomes of an op with this body; empty: it went well.
  std::string Verdict(std::function<void(RunContext&)> body) {
    eng_->Push({.name = "checked", .updates = {x_}, .place = Gpu(0)}, std::move(body));
    try {
      eng_->Wait(x_);
      return "";
    } catch (const OpError& error) {
      eng_->ClearError(x_);
      return error.what();
    }
  }
  std::shared_ptr<Device> device_;
  std::optional<Engine> eng_;
  Var x_;
};

TEST_F(CudaModelChecks, ABodyThatBlocksTheHostDirectlyIsNamedWithTheCall) {
  ASSERT_EQ(device_->info().unchecked, "");
  Event event;
  ASSERT_TRUE(device_->CreateEvent(&event).ok());
  const std::pair<const char*, std::function<void(RunContext&)>> calls[] = {
      {"cudaStreamSynchronize", [](RunContext& ctx) { (void)cudaStreamSynchronize(CudaStream(ctx)); }},
      {"cudaDeviceSynchronize", [](RunContext&) { (void)cudaDeviceSynchronize(); }},
      {"cudaEventSynchronize",
       [&](RunContext& ctx) {
         Must(ctx.device().Record(event, ctx.stream()));
         (void)cudaEventSynchronize(static_cast<cudaEvent_t>(event.raw));
       }},
      {"cudaFree", [](RunContext&) { (void)cudaFree(nullptr); }}};
  for (const auto& [call, body] : calls) {
    const std::string error = Verdict(body);
    EXPECT_NE(error.find(call), std::string::npos) << call << ": " << error;
    EXPECT_NE(error.find("'checked'"), std::string::npos) << error;
  }
  EXPECT_EQ(Verdict([](RunContext&) {}), "") << "of the op before";
  EXPECT_TRUE(device_->DestroyEvent(event).ok());
}

TEST_F(CudaModelChecks, WhatTheEngineDoesForABodyIsNotTheBodys) {
  const std::vector<int32_t> words(16, 1);
  DeviceMemory memory;
  EXPECT_EQ(Verdict([&](RunContext& ctx) {
              memory = ctx.Allocate(words.size() * sizeof words[0]);
              // The backend waits for a pageable copy.
              Must(ctx.device().CopyIn(memory.data(), words.data(), words.size() * sizeof words[0], ctx.stream(),
                                       MemoryKind::kPageable));
            }),
            "");
  EXPECT_EQ(Verdict([](RunContext& ctx) {
              static const char key = 0;
              (void)ctx.LaneLocal(&key, [](RunContext& c) -> std::shared_ptr<void> {
                (void)cudaStreamSynchronize(CudaStream(c));  // as libraries do that set themselves up
                return std::make_shared<int>(0);
              });
            }),
            "");
  EXPECT_EQ(Verdict([](RunContext& ctx) {
              Event event;
              Must(ctx.device().CreateEvent(&event));
              Must(ctx.device().Record(event, ctx.stream()));
              (void)cudaEventQuery(static_cast<cudaEvent_t>(event.raw));  // a look blocks nobody
              Must(ctx.device().DestroyEvent(event));
            }),
            "");
  memory.Reset();
}

TEST_F(CudaModelChecks, ThreadsThatRunNoBodyMayBlock) {
  const std::string error = Verdict([](RunContext& ctx) {
    const cudaStream_t stream = CudaStream(ctx);
    std::thread([stream] { EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess); }).join();
  });
  EXPECT_EQ(error, "");
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// A process of its own, in which CUPTI has a subscriber: conformance_on_model_profiled.
TEST_F(CudaModelTest, ProfiledProcessesAreToldWhatIsNotChecked) {
  const std::shared_ptr<Device> device = MakeCudaDevice(0, true);
  EXPECT_NE(device->info().unchecked.find("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"), std::string::npos)
      << device->info().unchecked;
  EXPECT_NE(device->info().unchecked.find("direct calls in bodies"), std::string::npos) << device->info().unchecked;
}

}  // namespace
}  // namespace engine::test
