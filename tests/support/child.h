// InChild: runs a body in a fork's child. HowItEnded: waits for a child that goes its own way. SharedCount: of a process and its
// children together.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <new>

#include "support/sanitizers.h"

namespace engine::test {

// Waits for the child, which may hang before its body, in the fork itself. Success: it ended with 0.
inline testing::AssertionResult HowItEnded(pid_t pid) {
  int status = 0;
  for (int naps = 0; waitpid(pid, &status, WNOHANG) == 0; ++naps) {
    if (naps == 40'000) kill(pid, SIGABRT);
    usleep(1000);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "the child ended with " << (WIFSIGNALED(status) ? "signal " : "status ")
                                     << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

class SharedCount {
 public:
  SharedCount()
      : at_(static_cast<std::atomic<int>*>(
            mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (at_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~SharedCount() { munmap(at_, sizeof *at_); }
  SharedCount(const SharedCount&) = delete;
  std::atomic<int>& operator*() const { return *at_; }

 private:
  std::atomic<int>* const at_;
};

// True if `body` returned true there, in time. Threads of the parent go on meanwhile.
template <class F>
testing::AssertionResult InChild(F&& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(30);
    int code = 1;
    try {
      code = body() ? 0 : 2;
    } catch (const std::exception& e) {
      fprintf(stderr, "child: %s\n", e.what());
      code = 3;
    }
    _exit(code);
  }
  return HowItEnded(pid);
}

inline const char* WhyNoForks() {
  if (kUnderTsan) return "ThreadSanitizer does not support threads made in a fork child";
  if (kUnderAsan) return "AddressSanitizer 16 forks with its allocator's locks held by other threads";
  return nullptr;
}

}  // namespace engine::test
