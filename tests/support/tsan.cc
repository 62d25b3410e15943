// What ThreadSanitizer is told, in every test binary that is built with it.
#include "support/sanitizers.h"

#ifdef ENGINE_UNDER_TSAN
// Frames are matched by name, which takes a symbolizer; this one is part of binutils.
extern "C" const char* __tsan_default_options() { return "external_symbolizer_path=/usr/bin/addr2line"; }
// Each with its reason:
//   DescribeException  reads an exception under an exception_ptr. Its count lives in libstdc++, which is not
//                      instrumented, so the tool does not see that the last holder destroys it after us.
//   DescribePending    copies what a block says, and drops the copy if the block was refilled: see describe_pending.cc.
extern "C" const char* __tsan_default_suppressions() {
  return "race:engine::detail::DescribeException\n"
         "race:engine::detail::EngineCore::DescribePending\n"
         "race:std::__exception_ptr::\n";
}
#endif
