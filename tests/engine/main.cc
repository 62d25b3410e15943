// Death tests start the binary again instead of forking one that may have threads. --version says what was built from what.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "engine/c_api.h"
#include "engine_stamp.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("%s, with libengine %s\n", ENGINE_STAMP, EngineVersion());
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  return RUN_ALL_TESTS();
}
