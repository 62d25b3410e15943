// PushScopes: the scopes that this thread's pushes are under: a cancel scope, a policy, a redirect (a bulk or a
// capture).
//
// User code opens them on its own thread. The engine may run a body on such a thread (in a wait that drives the caller
// pool, or under naive and inline). Inside that body none of the scopes counts: it pushes as it would on a worker.
// BodyScopes sets the scopes aside during the body.
//
// Threads: each thread has its own.
// Order:   the scopes of a thread may end in any order, also inside a body for which they were set aside.
#pragma once

#include <optional>

#include "engine/engine.h"
#include "engine/spi/redirect.h"

namespace engine::detail {

struct PushScopes {
  CancelScope* cancel = nullptr;
  PolicyScopeLink* policy = nullptr;  // innermost
  Redirect* redirect = nullptr;       // innermost
  PushScopes* aside = nullptr;        // the scopes that were set aside for the innermost body on this thread
};
extern thread_local constinit PushScopes t_scopes;

class BodyScopes {
 public:
  BodyScopes() {
    if (!t_scopes.cancel && !t_scopes.policy && !t_scopes.redirect) [[likely]]
      return;
    saved_.emplace(t_scopes);
    t_scopes = {.aside = &*saved_};
  }
  ~BodyScopes() {
    if (saved_) [[unlikely]]
      t_scopes = *saved_;
  }
  BodyScopes(const BodyScopes&) = delete;

 private:
  std::optional<PushScopes> saved_;
};

// Takes `link` out of the list that begins at the member `head`, in t_scopes or in what was set aside, wherever it is.
template <class Link, class Next>
void Unlink(Link* PushScopes::*head, Link* link, Next&& next) noexcept {
  for (PushScopes* scopes = &t_scopes; scopes; scopes = scopes->aside) {
    Link** at = &(scopes->*head);
    while (*at && *at != link) at = &next(**at);
    if (*at) *at = next(*link);
  }
}

}  // namespace engine::detail
