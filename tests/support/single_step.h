// SingleStep: the processor traps after each instruction of this thread, and calls a hook with the address of the next one.
// For what no counter shows: that a stretch of code has no atomic instruction, that a thread may stop anywhere.
// Threads: one at a time steps. The hook runs in a signal handler: atomics, spinning and reading only.
#pragma once

#include <ucontext.h>
#include <csignal>
#include <cstdint>

#include "support/sanitizers.h"

namespace engine::test {

#if defined(__x86_64__)
inline constexpr bool kCanStep = !kSanitized;

inline void (*g_step_hook)(const uint8_t* next) = nullptr;

// The trap flag; the red zone below the stack pointer may be in use.
inline void StartStepping(void (*hook)(const uint8_t* next)) {
  g_step_hook = hook;
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t*, void* context) {
    g_step_hook(reinterpret_cast<const uint8_t*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]));
  };
  sigaction(SIGTRAP, &action, nullptr);
  asm volatile("subq $128, %%rsp; pushfq; orq $0x100, (%%rsp); popfq; leaq 128(%%rsp), %%rsp" ::: "memory", "cc");
}
inline void StopStepping() {
  asm volatile("subq $128, %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; leaq 128(%%rsp), %%rsp" ::: "memory", "cc");
  signal(SIGTRAP, SIG_DFL);
}

// A locked read-modify-write: the lock prefix, or an exchange with memory.
inline bool IsAtomic(const uint8_t* at) {
  for (;; ++at) {
    switch (*at) {
      case 0xf0: return true;
      case 0x26:
      case 0x2e:
      case 0x36:
      case 0x3e:
      case 0x64:
      case 0x65:
      case 0x66:
      case 0x67:
      case 0xf2:
      case 0xf3: continue;
      default: break;
    }
    if ((*at & 0xf0) == 0x40) ++at;  // REX
    return (*at == 0x86 || *at == 0x87) && at[1] < 0xc0;
  }
}
#else
inline constexpr bool kCanStep = false;
inline void StartStepping(void (*)(const uint8_t*)) {}
inline void StopStepping() {}
inline bool IsAtomic(const uint8_t*) { return false; }
#endif

}  // namespace engine::test
