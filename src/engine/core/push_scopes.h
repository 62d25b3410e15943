// PushScopes: what the pushes of this thread are under: a cancel scope, a policy, a redirect (a bulk, a capture).
//
// User code opens them on its own thread. A body that the engine runs on such a thread (a wait that drives, naive, inline) is
// under none of them: it pushes as it would on a worker. BodyScopes sets them aside for the body's time.
//
// Threads: each thread its own.
// Order:   scopes of a thread may end in any order, also inside a body that had them set aside: Unlink looks there too.
#pragma once

#include <optional>

#include "engine/engine.h"
#include "engine/spi/redirect.h"

namespace engine::detail {

struct PushScopes {
  CancelScope* cancel = nullptr;
  PolicyScopeLink* policy = nullptr;  // innermost
  Redirect* redirect = nullptr;       // innermost
  PushScopes* aside = nullptr;        // what was set aside for the innermost body on this thread
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

// Takes `link` out of the list that begins at the member `head`, here or where it was set aside. Not there: nothing.
template <class Link, class Next>
void Unlink(Link* PushScopes::*head, Link* link, Next&& next) noexcept {
  for (PushScopes* scopes = &t_scopes; scopes; scopes = scopes->aside) {
    Link** at = &(scopes->*head);
    while (*at && *at != link) at = &next(**at);
    if (*at) *at = next(*link);
  }
}

}  // namespace engine::detail
