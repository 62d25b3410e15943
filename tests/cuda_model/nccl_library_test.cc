// NCCL that is not there at first: the process loads it later, as importing PyTorch does.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <string>

namespace engine::test {
namespace {

TEST(NcclLibrary, IsFoundOnceTheProcessHasLoadedIt) {
  int version = 0;
  if (ncclGetVersion(&version) == ncclSuccess) GTEST_SKIP() << "this machine has NCCL";
  const std::string said = ncclGetErrorString(ncclSystemError);
  EXPECT_NE(said.find("libnccl.so.2: cannot open"), std::string::npos) << said;
  EXPECT_NE(said.find("pip install nvidia-nccl-cu13"), std::string::npos) << said;
  ASSERT_NE(dlopen(NCCL_MODEL, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  EXPECT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_GT(version, 0);
  EXPECT_NE(std::string(ncclGetErrorString(ncclSuccess)), "");
}

}  // namespace
}  // namespace engine::test
