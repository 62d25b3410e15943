#include "base/affinity.h"

namespace engine::detail {

static thread_local constinit std::optional<cpu_set_t> t_before;

void ConfineThisThread(int cpu) noexcept {
  cpu_set_t before, one;
  if (!t_before && sched_getaffinity(0, sizeof before, &before) == 0) t_before = before;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(cpu), &one);
  sched_setaffinity(0, sizeof one, &one);
}

void FreeThisThread() noexcept {
  TakeProcessors(t_before);
  t_before.reset();
}

std::optional<cpu_set_t> ProcessorsBefore() noexcept { return t_before; }

void TakeProcessors(const std::optional<cpu_set_t>& processors) noexcept {
  if (processors) sched_setaffinity(0, sizeof *processors, &*processors);
}

}  // namespace engine::detail
