#include "supervisor.h"

#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "support/sanitizers.h"

namespace engine::oracle {
namespace {

// The processor time that all threads of a process have had.
double ProcessorSeconds(pid_t pid) {
  clockid_t clock;
  timespec time{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

// What a child reports of each program: that it begins, and how it ended.
struct Supervisor::Message {
  enum What : uint8_t { kBegins, kFine, kWrong } what;
  uint64_t number;
  Totals totals;
};

void Supervisor::ChildMain(int pipe, uint64_t first, Clock::time_point until) {
  // A new process after so many programs: names that programs make stay for the life of a process, and leaks are looked
  // for at its end.
  constexpr uint64_t kPrograms = 100;
  const auto say = [&](Message message) {
    if (write(pipe, &message, sizeof message) != sizeof message) _exit(1);
  };
  for (uint64_t number = first; number < first + kPrograms && Clock::now() < until; ++number) {
    const std::optional<Program> program = source_(number);
    if (!program) break;
    say({Message::kBegins, number, {}});
    if (verbose_) {
      printf("%s\n", Describe(*program).c_str());
      fflush(stdout);
    }
    Totals totals;
    const std::string wrong = RunProgram(*program, &totals);
    if (!wrong.empty()) {
      printf("WRONG: %s\n%s", Describe(*program).c_str(), wrong.c_str());
      fflush(stdout);
    }
    say({wrong.empty() ? Message::kFine : Message::kWrong, number, totals});
    if (!wrong.empty()) _exit(0);  // what a wrong program left must not count against the next
  }
  if (test::kUnderAsan) exit(0);  // which looks for leaks
  _exit(0);
}

// Returns the number of the next program.
uint64_t Supervisor::RunChild(uint64_t first, Clock::time_point until, Verdicts* verdicts) {
  int pipe[2];
  if (::pipe(pipe) != 0) throw std::runtime_error("no pipe");
  fflush(stdout);
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("no process");
  if (pid == 0) {
    close(pipe[0]);
    ChildMain(pipe[1], first, until);
  }
  close(pipe[1]);
  uint64_t next = first;
  bool running = false, killed = false;
  // For a program that loops for ever; other hangs end the child by themselves. What counts is the processor time that it has had
  // since it last said something: beside other work, and at a low priority, the longest program takes minutes.
  const double most = hang_limit * 4.0 * std::max(2u, std::thread::hardware_concurrency());
  for (;;) {
    pollfd wait{pipe[0], POLLIN, 0};
    const double before = ProcessorSeconds(pid);
    // Seconds that this process has waited: minutes for which a host stops all processes don't count.
    int silent = 0;
    const auto goes_on = [&] { return silent < hang_limit * 40 && ProcessorSeconds(pid) - before < most; };
    while (goes_on() && poll(&wait, 1, 1000) == 0) ++silent;
    if (!goes_on()) {
      kill(pid, SIGABRT);
      killed = true;
      break;
    }
    Message message;
    if (read(pipe[0], &message, sizeof message) != sizeof message) break;
    next = message.number;
    running = message.what == Message::kBegins;
    if (running) continue;
    ++next;
    verdicts->totals += message.totals;
    if (message.what == Message::kFine) continue;
    ++verdicts->bad;
    failed_(*source_(message.number));
  }
  close(pipe[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (status == 0 && !running) return next;
  ++verdicts->bad;
  const std::optional<Program> program = source_(running ? next : first);
  if (!running) {
    printf("LEAK or other end of process %d behind the programs from this one to number %" PRIu64 ": status %d: %s\n",
           pid, next - 1, WEXITSTATUS(status), Describe(*program).c_str());
  } else if (killed) {
    printf("ENDLESS: %s\n", Describe(*program).c_str());
  } else if (WIFSIGNALED(status)) {
    printf("CRASH by signal %d: %s\n", WTERMSIG(status), Describe(*program).c_str());
  } else {
    printf("%s with status %d: %s\n", WEXITSTATUS(status) == kHung ? "HUNG" : "ENDED", WEXITSTATUS(status),
           Describe(*program).c_str());
  }
  fflush(stdout);
  if (running) {
    ++verdicts->totals.seeds;
    failed_(*program);
    ++next;
  }
  return next;
}

Verdicts Supervisor::Run(Clock::time_point until, uint64_t most_bad) {
  Verdicts verdicts;
  uint64_t next = 0;
  while (verdicts.bad < most_bad && Clock::now() < until && source_(next)) next = RunChild(next, until, &verdicts);
  return verdicts;
}

}  // namespace engine::oracle
