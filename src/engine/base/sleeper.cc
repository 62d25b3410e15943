#include "base/sleeper.h"

namespace engine::detail {

void Sleeper::SendAway() noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(thread_, sizeof allowed, &allowed) != 0) return;
  const int here = sched_getcpu();
  if (here < 0 || CPU_COUNT(&allowed) < 2 || !CPU_ISSET(static_cast<size_t>(here), &allowed)) return;
  cpu_set_t elsewhere = allowed;
  CPU_CLR(static_cast<size_t>(here), &elsewhere);
  if (sched_setaffinity(thread_, sizeof elsewhere, &elsewhere) == 0) allowed_ = allowed;  // mechanism: sends_away
}

void Sleeper::TakeBack() noexcept {
  sched_setaffinity(0, sizeof *allowed_, &*allowed_);  // mutant: sleeper_stays_away
  allowed_.reset();
}

}  // namespace engine::detail
