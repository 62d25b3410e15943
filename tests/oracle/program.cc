#include "program.h"

#include <unistd.h>

#include <cinttypes>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "faults.h"
#include "support/sanitizers.h"
#include "verdict.h"
#include "world.h"

namespace engine::oracle {
namespace {

// Writes the stacks of all threads of a process into a file, and prints its name, if gdb is installed.
void WriteStacks(uint64_t seed, pid_t process = getpid(), const char* what = "") {
  char command[300];
  snprintf(command, sizeof command,
           "gdb -batch -p %d -ex 'thread apply all bt 30' >oracle-%" PRIu64
           "%s.stacks 2>/dev/null && "
           "echo stacks are in oracle-%" PRIu64 "%s.stacks",
           process, seed, what, seed, what);
  if (system(command) != 0) printf("there are no stacks, for want of gdb\n");
}

uint64_t g_seed = 0;
void OnCrash(int signal) {
  static std::atomic<bool> once{false};
  if (once.exchange(true)) pause();
  std::signal(signal, SIG_DFL);
  WriteStacks(g_seed);
  raise(signal);
}

// Reports a program in which no op, push or wait has begun or ended for a long time, and ends the process.
class HangWatch {
 public:
  HangWatch(const Program& program, World& world)
      : program_(program), world_(world), thread_(OwnThread([this] { Main(); })) {}
  ~HangWatch() {
    {
      std::lock_guard lock(mu_);
      over_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

 private:
  void Main() {
    std::unique_lock lock(mu_);
    uint64_t last = 0;
    for (int still = 0;;) {
      if (changed_.wait_for(lock, std::chrono::seconds(1), [&] { return over_; })) return;
      const uint64_t now = g_tick.load(std::memory_order_relaxed);
      still = now == last ? still + 1 : 0;
      last = now;
      if (still >= hang_limit) Report();
    }
  }
  void Report() {
    printf("HANG: nothing has moved for %d s: %s\n", hang_limit, Describe(program_).c_str());
    fflush(stdout);
    alarm(20);  // in case even that hangs
    printf("%s\n", world_.DescribePending().c_str());
    WriteStacks(program_.seed);
    if (const pid_t child = world_.child()) {  // it may hang in the fork itself, where it has no alarm yet
      WriteStacks(program_.seed, child, "-child");
      kill(child, SIGKILL);
    }
    fflush(stdout);
    _exit(kHung);
  }
  const Program& program_;
  World& world_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace

std::string Describe(const Program& program) { return std::to_string(program.seed) + " " + Describe(program.shape); }

Program ParseProgram(const std::string& line) {
  Program program;
  size_t used = 0;
  program.seed = std::stoull(line, &used);
  ParseShape(line.substr(std::min(used + 1, line.size())), program.shape);
  MakeConsistent(program.shape);
  return program;
}

std::string RunProgram(const Program& program, Totals* totals) {
  g_seed = program.seed;
  if (!test::kSanitized)  // sanitizers report leaks themselves
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(signal, OnCrash);
  World world(program.shape, program.seed);
  {
    const HangWatch watch(program, world);
    world.Run();
  }
  History history = world.TakeHistory();
  Verdict verdict(history, world.log());
  verdict.Check();
  if (const int64_t alive = ClosureWitness::alive())
    world.log().Complain("%" PRId64 " closures were never destroyed", alive);
  *totals = verdict.totals();
  totals->seeds = 1;
  totals->forks = static_cast<uint64_t>(world.forks());
  return world.log().complaints();
}

}  // namespace engine::oracle
