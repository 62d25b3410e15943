// Forks while everything else goes on. The child must find an engine that works, without the parent's pending ops.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

#include "engine/testing/software_device.h"
#include "faults.h"
#include "program.h"
#include "world.h"

namespace engine::oracle {
namespace {
constexpr uint8_t kForkLane = 7;  // which no other op uses, because others would wait there
}

void World::PrepareForks() {
  child_var_ = eng_->NewVar();
  Graph graph;
  for (int i = 0; i < 4; ++i) graph.Add({.name = "child plan", .updates = {child_var_}}, [this] { ++child_runs_; });
  // A name is made together with a frame; a child may not be able to make one.
  child_plan_ = graph.Compile(*eng_, {.name = Has(kForkNames) ? Name("child plan") : Name()});
  child_plan_.Start().Wait();
  if (!devices_.empty() && seed_ % 2 == 0) {  // otherwise a fork may come before the first use of a device
    const Var made = eng_->NewVar();
    eng_->Push({.name = "memory over forks", .writes = {made}, .place = Gpu(0)},
               [this](RunContext& ctx) { child_memory_ = ctx.Allocate(sizeof(uint64_t)); });
    eng_->Wait(made);
  }
}

void World::Open::Keep(Completion completion) {
  std::unique_lock lock(mu);
  if (!over) {
    done = std::move(completion);
    return;
  }
  lock.unlock();
  completion();
}
Completion World::Open::Close() {
  std::lock_guard lock(mu);
  over = true;
  return std::move(done);
}

// Makes what a fork should find half done: a held op, an open completion, a ParallelFor.
void World::PushOverFork(const std::shared_ptr<std::atomic<bool>>& forked) {
  auto open = std::make_shared<Open>();
  CancelScope never;
  if (Has(kForkHandles)) {
    child_held_ = eng_->PushHeld({.name = "held over a fork", .writes = {child_var_}, .cancel = &never}, [] {});
    pending_over_fork_.push_back(child_var_);
    if (!devices_.empty()) {
      child_held_ops_ = std::make_shared<HeldOps>(*eng_);
      child_held_ops_->Push({.name = kHeldOpOverFork, .place = Gpu(0), .cancel = &never}, [] {});
    }
    eng_->PushAsync({.name = kOpenOverFork, .place = Io(), .cancel = &never},
                    [open](RunContext&, Completion done) { open->Keep(std::move(done)); });
  }
  if (Has(kForkParallel))
    eng_->Push({.name = "pieces over a fork", .place = Io(), .cancel = &never}, [](RunContext& ctx) {
      ctx.ParallelFor(64, 1, [](size_t, size_t) { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
    });
  if (Has(kForkHandles | kForkParallel)) std::this_thread::sleep_for(std::chrono::microseconds(300));
  child_completion_ = open->Close();
  // From here on nothing waits for room, which ops behind a held one, and this kernel, keep until the fork is over.
  if (Has(kForkHandles)) child_run_ = child_plan_.TryStart({}, {.cancel = &never});
  if (devices_.empty()) return;
  const Var of_device = eng_->NewVar();
  const bool pushed = eng_->TryPush(
      {.name = kKernelOverFork, .writes = {of_device}, .place = Gpu(0, kForkLane), .cancel = &never},
      [forked](RunContext& ctx) {
        const DeviceStatus status = static_cast<SoftwareDevice&>(ctx.device())
                                        .Launch(ctx.stream(), kKernelOverFork, std::chrono::nanoseconds(0), [forked] {
                                          while (!forked->load()) std::this_thread::yield();
                                        });
        if (!status.ok()) throw DeviceError(status);
      });
  if (pushed) pending_over_fork_.push_back(of_device);
}

void World::ForkOnce(Random& random) {
  const std::unique_lock one_at_a_time(fork_mu_, std::try_to_lock);
  if (!one_at_a_time || forks_ >= kMaxForks + (end_begins_ ? 1 : 0)) return;
  const bool destroy = random.OneIn(3);
  CancelScope never;
  const auto forked = std::make_shared<std::atomic<bool>>(false);
  try {
    PushOverFork(forked);
  } catch (const Error& error) {  // the system refused a thread
    if (!Has(kNoThreads) && shutdown_begin_ == kNever)
      log_.Complain("a push before a fork was refused: %s", error.what());
  }
  std::optional<Bulk> bulk;
  try {
    if (Has(kBulks) && !devices_.empty()) {
      bulk.emplace(*eng_, 8);
      eng_->TryPush({.name = kBulkOverFork, .place = Gpu(1), .cancel = &never}, [] {});
    }
  } catch (const Error&) {  // as above
  }
  std::unique_lock others(others_mu_);  // what the other threads have there stays there
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(static_cast<unsigned>(hang_limit));
    log_.EngineGone(false);  // the parent reports its errors itself
    FailThreads(0);
    if (bulk) bulk->Release();
    _exit(Child(destroy));
  }
  others.unlock();
  *forked = true;
  pending_over_fork_.clear();
  bulk.reset();
  int status = 0;
  child_ = pid;
  waitpid(pid, &status, 0);
  child_ = 0;
  ++forks_;
  child_held_.Release();
  if (child_held_ops_) child_held_ops_->Release();
  child_held_ops_.reset();
  child_run_ = engine::Run();
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
  if (Has(kForkHandles)) {
    child_held_.Release();
    if (child_completion_) std::exchange(child_completion_, Completion())();
    if (child_held_ops_) child_held_ops_->Release();
    child_held_ops_.reset();
    if (child_run_ && seed_ % 2) {
      try {
        child_run_.WaitFor(std::chrono::milliseconds(1));
      } catch (const OpError&) {
      }
    }
    child_run_ = engine::Run();
  }
  try {
    eng_->Push({.name = "is it open"}, [] {});
  } catch (const UsageError&) {
    return shutdown_begin_ == kNever ? 30 : ClosedChild(destroy);
  }
  if (shutdown_end_ != kNever) return 31;
  for (const Var& v : pending_over_fork_) {
    try {
      eng_->Wait(v);
      if (shutdown_begin_ == kNever) return 18;
    } catch (const OpError&) {
    }
  }
  const Var fresh = eng_->NewVar(Has(kForkNames) ? "made in a child" : "");
  eng_->Start();
  eng_->SetPolicy(Policy::kThreaded);
  if (const int wrong = OtherPartsInAChild()) return wrong;
  if (const int wrong = WaitForAllVars()) return wrong;
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
    eng_->ClearError(child_var_);
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
  if (seed_ % 3 == 0) eng_->Shutdown();
  if (destroy) delete eng_;
  return 0;
}

// Another thread was shutting the engine down, or had done it: the child's is closed. Nothing hangs, nothing is accepted.
int World::ClosedChild(bool destroy) {
  if (const int wrong = WaitForAllVars()) return wrong;
  if (child_plan_) {
    try {
      child_plan_.Start().Wait();
      return 32;
    } catch (const UsageError&) {
    } catch (const OpError&) {
      return 33;
    }
  }
  try {
    eng_->WaitAll();
  } catch (const OpError&) {
  }
  eng_->Stop();
  eng_->Start();
  eng_->Shutdown();
  if (destroy) delete eng_;
  return 0;
}

int World::WaitForAllVars() {
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
      } catch (const ShutdownError&) {
        if (shutdown_begin_ == kNever) return 10;
      } catch (const NullWhat&) {
      } catch (const std::nullptr_t&) {
      } catch (const char*) {
      } catch (const std::bad_alloc&) {
        if (!Has(kDeviceNoMemory)) return 11;
      } catch (const Error& refused) {
        if (!Has(kDeviceNoThreads) || !strstr(refused.what(), "the system refused")) return 11;
      } catch (...) {
        return 11;
      }
    }
  }
  return 0;
}

// Devices, communicators and the threads of stages stay with the parent.
int World::OtherPartsInAChild() {
  const bool had_memory = static_cast<bool>(child_memory_);
  child_memory_.Reset();
  if (!devices_.empty()) {
    try {
      eng_->Push({.name = "on the parent's device", .place = Gpu(0)}, [] {});
      if (had_memory) return 20;
    } catch (const UsageError&) {
    }
  }
  if (comms_) {
    for (Communicator& comm : *comms_) {
      try {
        int number = 0;
        comm.Push(*eng_, {.name = "all_reduce"}, {Collective::AllReduce(&number, &number, 1, DataType::kInt32)});
        return 21;
      } catch (const UsageError&) {
      }
    }
    comms_->clear();
    try {
      eng_->WaitAll();
    } catch (const OpError&) {
      return 25;
    }
  }
  if (stage_) {
    try {
      stage_->Take();
      return 22;
    } catch (const ForkedWhilePending&) {
    }
    if (forks_ % 2 == 0) {
      constexpr int kItems = 5;
      stage_->RestartWith([next = 0]() mutable { return next < kItems ? std::optional<int>(next++) : std::nullopt; },
                          [](int item) { return item; });
      for (int item = 0; item < kItems; ++item)
        if (stage_->Take() != item) return 23;
      if (stage_->Take()) return 24;
    }
    std::destroy_at(stage_);
  }
  return 0;
}

}  // namespace engine::oracle
