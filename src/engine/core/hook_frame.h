// HookFrame: marks that a hook of the user's runs on this thread (on_start, on_end, on_stall, on_unobserved).
//
// A hook may push. What would wait for the hook itself is refused inside it: Stop, Start and Shutdown in any, and a wait
// that has to sleep in on_start and on_end, because the worker that the hook keeps may be the one to run what it waits
// for. What a hook throws is told on stderr, for there is nobody else to tell, and changes nothing.
#pragma once

#include <cstdio>
#include <exception>
#include <utility>

#include "order/error_record.h"

namespace engine::detail {

class EngineCore;

struct HookFrame {
  enum class Kind { kWorker, kStall, kUnobserved };
  HookFrame(const EngineCore* of, Kind what);
  ~HookFrame();
  HookFrame(const HookFrame&) = delete;
  static bool Inside(const EngineCore* core);  // any
  static bool Inside(const EngineCore* core, Kind kind);

  const EngineCore* const core;
  const Kind kind;
  HookFrame* const outer;
};

template <class Hook>
void RunHook(const EngineCore* core, HookFrame::Kind kind, const char* name, Hook&& hook) {
  const HookFrame frame(core, kind);
  try {
    std::forward<Hook>(hook)();
  } catch (...) {
    std::fprintf(stderr, "engine: %s threw: %s\n", name, DescribeException(std::current_exception()).c_str());
  }
}

}  // namespace engine::detail
