// HookFrame: marks that a hook of the user runs on this thread (on_start, on_end, on_stall, on_unobserved).
//
// A hook may push. Calls that would wait for the hook itself are refused inside it: Stop, Start and Shutdown in every
// hook; in on_start and on_end also a wait that has to sleep, because the worker that runs the hook may be the one that
// has to run the awaited op. What a hook throws is printed to stderr and changes nothing.
//
// Threads: a frame lies on the stack of the thread that runs the hook.
#pragma once

#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

#include "order/error_record.h"

namespace engine::detail {

class EngineCore;

struct HookFrame {
  enum class Kind { kWorker, kStall, kUnobserved };
  HookFrame(const EngineCore* of, Kind what) : core(of), kind(what), outer(std::exchange(innermost, this)) {}
  ~HookFrame() { innermost = outer; }
  HookFrame(const HookFrame&) = delete;
  // Whether this thread is inside a hook of the engine; with a kind: inside such a hook.
  static bool Inside(const EngineCore* core, std::optional<Kind> kind = {}) {
    for (const HookFrame* h = innermost; h; h = h->outer)
      if (h->core == core && h->kind == kind.value_or(h->kind)) return true;
    return false;
  }

  static inline thread_local constinit HookFrame* innermost = nullptr;
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
