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
  EXPECT_NE(std::string(ncclGetErrorString(ncclSystemError)).find("libnccl.so.2"), std::string::npos);
  ASSERT_NE(dlopen(NCCL_MODEL, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  EXPECT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_GT(version, 0);
  EXPECT_NE(std::string(ncclGetErrorString(ncclSuccess)), "");
}

}  // namespace
}  // namespace engine::test
