#include "core/hook_frame.h"

namespace engine::detail {

namespace {
thread_local constinit HookFrame* t_hook = nullptr;
}

HookFrame::HookFrame(const EngineCore* of, Kind what) : core(of), kind(what), outer(std::exchange(t_hook, this)) {}
HookFrame::~HookFrame() { t_hook = outer; }

bool HookFrame::Inside(const EngineCore* core) {
  for (const HookFrame* h = t_hook; h; h = h->outer)
    if (h->core == core) return true;
  return false;
}
bool HookFrame::Inside(const EngineCore* core, Kind kind) {
  for (const HookFrame* h = t_hook; h; h = h->outer)
    if (h->core == core && h->kind == kind) return true;
  return false;
}

}  // namespace engine::detail
