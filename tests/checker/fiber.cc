#include "fiber.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

// Saves the callee-saved registers on the current stack, and goes on with what `load` was when it was saved.
asm(R"(
.text
.type checker_switch, @function
checker_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size checker_switch, .-checker_switch
.type checker_enter, @function
checker_enter:
  movq %r12, %rdi
  callq *%rbx
  ud2
.size checker_enter, .-checker_enter
)");
extern "C" void checker_switch(std::byte** save, std::byte* load) asm("checker_switch");
extern "C" void checker_enter() asm("checker_enter");

namespace checker {

namespace {
std::byte* g_scheduler_sp;
std::byte** g_running_sp;
}  // namespace

void Fiber::Prepare(Body body, void* argument) {
  Clear();
  // As checker_switch leaves it: r15 r14 r13 r12 rbx rbp, return address. One word more: the ABI wants the stack
  // 16-byte aligned at the call in checker_enter.
  void* frame[] = {nullptr,
                   nullptr,
                   nullptr,
                   argument,
                   reinterpret_cast<void*>(body),
                   nullptr,
                   reinterpret_cast<void*>(&checker_enter),
                   nullptr};
  sp_ = stack_ + kStackBytes - sizeof(frame) - 8;
  std::memcpy(sp_, frame, sizeof(frame));
}

void Fiber::Resume() {
  g_running_sp = &sp_;
  checker_switch(&g_scheduler_sp, sp_);
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (stack_[i] != std::byte{0}) {
      std::fputs("checker: a fiber's stack is too small\n", stderr);
      std::abort();
    }
  }
  ZeroBelow(stack_ + kGuardBytes, sp_);
}

void Fiber::Yield() { checker_switch(g_running_sp, g_scheduler_sp); }

void Fiber::Restore(std::span<const std::byte> live) {
  std::byte* const sp = stack_ + kStackBytes - live.size();
  ZeroBelow(sp_, sp);
  sp_ = sp;
  std::memcpy(sp_, live.data(), live.size());
}

void Fiber::Clear() {
  ZeroBelow(sp_, stack_ + kStackBytes);
  sp_ = stack_ + kStackBytes;
}

void Fiber::ZeroBelow(std::byte* from, std::byte* to) {
  if (from < to) std::memset(from, 0, static_cast<size_t>(to - from));
}

}  // namespace checker
