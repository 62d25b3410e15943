// Bodies that use their RunContext when their op may be over, and its Vars and record in other hands.
#include "world.h"

namespace engine::oracle {

World::EarlyContext World::LookEarly(RunContext& ctx) {
  const std::exception_ptr error = ctx.error();
  try {
    if (error) std::rethrow_exception(error);
  } catch (const OpError& shown) {
    log_.Shown(shown);
  } catch (const CancelledError&) {
  }
  return {.failed = error != nullptr};
}

// `name` is a copy: from here on the op's record may be another thread's.
void World::LookLate(const EarlyContext& early, const std::string& name, RunContext& ctx) {
  for (int look = 0; look < 3; ++look) {
    if (ctx.name() != name)
      log_.Complain("%s: its context has the name '%s' behind its completion", name.c_str(),
                    std::string(ctx.name()).c_str());
    static_cast<void>(ctx.cancelled());
    if (early.failed && !ctx.error())
      log_.Complain("%s: its context lost its error behind its completion", name.c_str());
    std::this_thread::yield();
  }
}

}  // namespace engine::oracle
