// Forks while everything else goes on. The child must find an engine that works, without the parent's pending ops.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "faults.h"
#include "world.h"

namespace engine::oracle {

void World::PrepareForks() {
  child_var_ = eng_->NewVar();
  Graph graph;
  for (int i = 0; i < 4; ++i) graph.Add({.name = "child plan", .updates = {child_var_}}, [this] { ++child_runs_; });
  // A name is made together with a frame; a child may not be able to make one.
  child_plan_ = graph.Compile(*eng_, {.name = Has(kForkNames) ? Name("child plan") : Name()});
  child_plan_.Start().Wait();
}

// Makes what a fork should find half done: a held op, an open completion, a ParallelFor.
void World::PushOverFork() {
  struct Open {
    std::mutex mu;
    Completion done;
    bool over = false;
  };
  auto open = std::make_shared<Open>();
  CancelScope never;
  if (Has(kForkHandles)) {
    child_held_ = eng_->PushHeld({.name = "held over a fork", .cancel = &never}, [] {});
    eng_->PushAsync({.name = kOpenOverFork, .place = Io(), .cancel = &never}, [open](RunContext&, Completion done) {
      std::unique_lock lock(open->mu);
      if (!open->over) {
        open->done = std::move(done);
        return;
      }
      lock.unlock();
      done();
    });
  }
  if (Has(kForkParallel))
    eng_->Push({.name = "pieces over a fork", .place = Io(), .cancel = &never}, [](RunContext& ctx) {
      ctx.ParallelFor(64, 1, [](size_t, size_t) { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
    });
  if (Has(kForkHandles | kForkParallel)) std::this_thread::sleep_for(std::chrono::microseconds(300));
  std::lock_guard lock(open->mu);
  open->over = true;
  child_completion_ = std::move(open->done);
}

void World::ForkOnce(Random& random) {
  if (forks_ >= kMaxForks) return;
  const bool destroy = random.OneIn(3);
  try {
    PushOverFork();
  } catch (const Error& error) {  // the system refused a thread
    if (!Has(kNoThreads) && shutdown_begin_ == kNever)
      log_.Complain("a push before a fork was refused: %s", error.what());
  }
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(40);
    log_.EngineGone(false);  // the parent reports its errors itself
    FailThreads(0);
    _exit(Child(destroy));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ++forks_;
  child_held_.Release();
  if (child_completion_) std::exchange(child_completion_, Completion())();
  if (WIFSIGNALED(status)) {
    log_.Complain("a fork's child was ended by signal %d%s", WTERMSIG(status),
                  WTERMSIG(status) == SIGALRM ? ": it hung" : "");
  } else if (WEXITSTATUS(status) != 0) {
    log_.Complain("a fork's child found something wrong: %d, see forks.cc", WEXITSTATUS(status));
  }
}

// Returns 0, or the number of what is wrong.
int World::Child(bool destroy) {
  const Var fresh = eng_->NewVar(Has(kForkNames) ? "made in a child" : "");
  eng_->Start();
  eng_->SetPolicy(Policy::kThreaded);
  if (Has(kForkHandles)) {
    child_held_.Release();
    if (child_completion_) std::exchange(child_completion_, Completion())();
  }
  for (const Var& v : vars_) {
    try {
      eng_->Wait(v);
    } catch (const OpError& error) {
      try {
        error.RethrowCause();
      } catch (const ForkedWhilePending&) {
      } catch (const PlannedFailure&) {
      } catch (const CancelledError&) {
      } catch (const CompletionError&) {
      } catch (const NullWhat&) {
      } catch (const std::nullptr_t&) {
      } catch (const char*) {
      } catch (...) {
        return 11;
      }
    }
  }
  const uint64_t before = vars_[0].version();
  int x = 0;
  OpDesc all{.name = "child"};
  all.writes = vars_;
  eng_->Push(all, [&x] { ++x; });
  {
    const Bulk bulk(*eng_, 7);
    for (size_t i = 0; i < 50; ++i)
      eng_->Push({.name = "child", .updates = {vars_[i % vars_.size()], vars_[0]}}, [&x] { ++x; });
  }
  std::thread other([&] {
    for (int i = 0; i < 50; ++i) eng_->Push({.name = "child", .updates = {vars_[0]}}, [&x] { ++x; });
  });
  other.join();
  try {
    for (const Var& v : vars_) eng_->Wait(v);
  } catch (const OpError& error) {
    fprintf(stderr, "child: %s\n", error.what());
    return 12;
  }
  if (x != 101) return 13;
  if (vars_[0].version() != before + 101) return 14;
  if (child_plan_) {
    const int runs = child_runs_;
    child_plan_.Start().Wait();
    child_plan_.Start({}, {.policy = Policy::kInline}).Wait();
    if (child_runs_ != runs + 8) return 15;
  }
  if (Has(kForkParallel)) {
    std::atomic<int> pieces{0};
    eng_->Push({.name = "pieces", .writes = {fresh}}, [&](RunContext& ctx) {
      ctx.ParallelFor(100, 1, [&](size_t b, size_t e) { pieces += static_cast<int>(e - b); });
    });
    eng_->Wait(fresh);
    if (pieces != 100) return 16;
  }
  try {
    eng_->WaitAll();
  } catch (const OpError& error) {
    fprintf(stderr, "child: WaitAll: %s\n", error.what());
    return 17;
  }
  if (destroy) delete eng_;
  return 0;
}

}  // namespace engine::oracle
