// The backends that the suite runs on, and what is said of one that is missing.
#include "conformance.h"

namespace engine::test {

std::vector<Backend> Backends() {
  using Clock = SoftwareDeviceOptions::Clock;
  const auto software = [](Clock clock, uint64_t seed) {
    return [=](std::string*) { return MakeSoftwareUnderTest({.clock = clock, .seed = seed}); };
  };
  std::vector<Backend> backends{{"software_threads", software(Clock::kThreads, 0)},
                                {"software_virtual", software(Clock::kVirtual, 0)}};
  for (uint64_t seed : {1, 2, 3, 4, 5}) {
    backends.push_back({"software_virtual_seed_" + std::to_string(seed), software(Clock::kVirtual, seed)});
  }
  backends.push_back({"cuda", MakeCudaUnderTest});
  return backends;
}

namespace {

TEST(CudaDevice, AMissingOneIsNamedWithTheReason) {
  std::string why;
  const int count = CudaDeviceCount(&why);
  EXPECT_EQ(count == 0, !why.empty());
  try {
    (void)MakeCudaDevice(count);
    FAIL() << "there is no device " << count;
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.status().code(), DeviceCode::kNoDevice);
    EXPECT_NE(std::string(error.what()).find("cuda device " + std::to_string(count)), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

TEST(Devices, ANameIsAKindAndPerhapsAnOrdinal) {
  EXPECT_EQ(MakeDevice("software")->info().ordinal, 0);
  EXPECT_EQ(MakeDevice("software:3")->info().ordinal, 3);
  EXPECT_THROW((void)MakeDevice("cuda:999"), DeviceError);
  for (const std::string name :
       {"", "abacus", "abacus:1", "soft", "software:", "software:-1", "software:1x", "cuda:one"}) {
    try {
      (void)MakeDevice(name);
      ADD_FAILURE() << name << " was made";
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("'" + name + "'"), std::string::npos) << text;
      EXPECT_NE(text.find("allowed: \"cuda\", \"software\""), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace engine::test
