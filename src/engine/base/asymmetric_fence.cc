#include "base/asymmetric_fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace engine::detail {
namespace {

bool Register() noexcept {
#if defined(__SANITIZE_THREAD__)
  return false;  // ThreadSanitizer does not know membarrier
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  return false;
#endif
#endif
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

}  // namespace

const bool g_has_membarrier = Register();

void RegisterMembarrier() noexcept {
  if (g_has_membarrier) Register();
}

void HeavyFence() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (g_has_membarrier) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

}  // namespace engine::detail
