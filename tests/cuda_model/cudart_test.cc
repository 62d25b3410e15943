// The CUDA runtime that is looked for when it is needed: missing, of another kind, found. The program links none.
#include "device/cuda/cudart.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace engine::detail {
namespace {

bool Says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Cudart, AMissingRuntimeIsNamedWithWhereItWasLookedForAndWhatHasIt) {
  const std::string said = LoadCudart("libcudart.so.999");
  EXPECT_TRUE(Says(said, "the CUDA runtime cannot be loaded: libcudart.so.999: cannot open shared object file"))
      << said;
  EXPECT_TRUE(Says(said, "pip install nvidia-cuda-runtime")) << said;
  EXPECT_TRUE(Says(said, "LD_LIBRARY_PATH, beside the engine's library")) << said;
}

TEST(Cudart, ALibraryWithoutItsFunctionsIsRefusedAndTheyAreNamed) {
  const std::string said = LoadCudart(BROKEN_CUDART);
  EXPECT_TRUE(Says(said, std::string("the CUDA runtime cannot be used: ") + BROKEN_CUDART + " lacks ")) << said;
  EXPECT_TRUE(Says(said, "cudaSetDevice")) << said;
  EXPECT_FALSE(Says(said, "cudaGetDeviceCount,")) << said << ": that one is there";
  EXPECT_TRUE(Says(said, "This build needs one of CUDA " + std::to_string(CUDART_VERSION / 1000))) << said;
}

// As importing PyTorch loads one from a folder of its own.
TEST(Cudart, TheRuntimeThatTheProcessHasLoadedIsTaken) {
  void* const loaded = dlopen(CUDA_MODEL, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(loaded, nullptr) << dlerror();
  EXPECT_EQ(LoadCudart(), "");
  EXPECT_EQ(cudart::cudaGetDeviceCount.address(), dlsym(loaded, "cudaGetDeviceCount"));
  int count = 0;
  EXPECT_EQ(cudart::cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_GT(count, 0);
  EXPECT_EQ(LoadCudart("libcudart.so.999"), "") << "what has been found stays";
}

}  // namespace
}  // namespace engine::detail
