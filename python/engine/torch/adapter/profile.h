// Profile: a profiler that watches the caller sees the nodes of its runs on every thread.
//
// torch keeps who watches a thread in that thread. While a profiler is on, a run takes it along to the threads that run its
// nodes, and each node is recorded by its name; the operators inside record themselves. Otherwise a node pays for one look.
// Threads:   Begin and End on the caller, before and after the run; ProfiledNode on any thread between them.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <optional>
#include <string>

#include "threads.h"

namespace engine_torch {

class Profile {
 public:
  void Begin() {
    on_ = at::hasCallbacks();
    if (!on_) return;
    info_ = c10::ThreadLocalDebugInfo::current();
    callbacks_ = at::get_record_function_tls_();
  }
  void End() {
    if (on_) *this = {};
  }

 private:
  friend class ProfiledNode;
  bool on_ = false;
  std::shared_ptr<c10::ThreadLocalDebugInfo> info_;
  at::RecordFunctionTLS callbacks_;
};

// While it lives, the node of that name runs here.
class ProfiledNode {
 public:
  ProfiledNode(const Profile& profile, const std::string& name) {
    if (!profile.on_) return;
    if (!is_caller) before_.emplace(profile);
    function_.emplace(at::RecordScope::USER_SCOPE);
    if (function_->isActive()) function_->before(name.c_str());
  }

 private:
  struct Before {
    explicit Before(const Profile& profile) : callbacks(at::get_record_function_tls_()), info(profile.info_) {
      at::set_record_function_tls_(profile.callbacks_);
    }
    ~Before() { at::set_record_function_tls_(callbacks); }
    const at::RecordFunctionTLS callbacks;
    c10::DebugInfoGuard info;
  };
  std::optional<Before> before_;
  std::optional<at::RecordFunction> function_;  // ends first
};

}  // namespace engine_torch
