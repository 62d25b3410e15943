// A library to preload (`./run check stalls`): it stops random threads of the process at random moments, as a host does that takes a
// processor away. A test that is right only while nothing delays a thread fails under it. It allocates nothing and takes no lock,
// so tests that count allocations run under it, too.
//
// STALLS_ONLY: stalls programs only whose path has this in it, so that ctest and shells go on. STALLS_EVERY: milliseconds between
// two stalls, on average. STALLS_LONGEST: milliseconds of the longest one; most are shorter than an eighth of it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Nobody else uses it, and it does not queue: a thread that is stopped is not stopped again right afterwards.
enum { kSignal = SIGSTKFLT, kMostThreads = 512 };
static double every_ms = 4, longest_ms = 50;
static int (*real_sigmask)(int, const sigset_t*, sigset_t*);
static __thread uint64_t state;

static double Uniform(void) {
  if (state == 0) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    state = (uint64_t)now.tv_nsec * 2654435761u + (uint64_t)syscall(SYS_gettid) * 40503u + 1;
  }
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (double)(state >> 11) / (double)(1ull << 53);
}

static void Sleep(double ms) {
  const time_t seconds = (time_t)(ms / 1000);
  const struct timespec length = {seconds, (long)((ms - 1000.0 * (double)seconds) * 1e6)};
  syscall(SYS_nanosleep, &length, NULL);
}

static void Stall(int number) {
  (void)number;
  const int kept = errno;
  const double u = Uniform();
  Sleep(longest_ms * u * u * u);
  errno = kept;
}

// The engine's threads block all signals. This one goes through.
int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) {
  sigset_t open;
  if (set != NULL) {
    open = *set;
    if (how != SIG_UNBLOCK) sigdelset(&open, kSignal);
  }
  return real_sigmask(how, set != NULL ? &open : NULL, old);
}

// The threads of this process but `me`. By system calls, because opendir allocates.
static int Threads(long* ids, long me) {
  static char entries[16384];
  const int folder = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (folder < 0) return 0;
  int found = 0;
  for (long got; (got = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0;) {
    for (long at = 0; at < got;) {
      uint16_t length;  // struct linux_dirent64: inode, offset, length, type, name
      memcpy(&length, entries + at + 16, sizeof(length));
      const long id = atol(entries + at + 19);
      if (id > 0 && id != me && found < kMostThreads) ids[found++] = id;
      at += length;
    }
  }
  syscall(SYS_close, folder);
  return found;
}

static void* Main(void* unused) {
  (void)unused;
  static long ids[kMostThreads];
  sigset_t all;
  sigfillset(&all);
  real_sigmask(SIG_SETMASK, &all, NULL);
  const long me = syscall(SYS_gettid);
  for (;;) {
    Sleep(every_ms * 2 * Uniform());
    const int found = Threads(ids, me);
    if (found > 0) syscall(SYS_tgkill, getpid(), ids[(int)(Uniform() * found)], kSignal);
  }
  return NULL;
}

static double Number(const char* name, double otherwise) {
  const char* const given = getenv(name);
  return given != NULL ? atof(given) : otherwise;
}

__attribute__((constructor)) static void Start(void) {
  real_sigmask = (int (*)(int, const sigset_t*, sigset_t*))dlsym(RTLD_NEXT, "pthread_sigmask");
  char path[4096] = "";
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  const char* const only = getenv("STALLS_ONLY");
  if (length < 0 || (only != NULL && strstr(path, only) == NULL)) return;
  every_ms = Number("STALLS_EVERY", every_ms);
  longest_ms = Number("STALLS_LONGEST", longest_ms);
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_handler = Stall;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  sigaction(kSignal, &action, NULL);
  pthread_t thread;
  pthread_create(&thread, NULL, Main, NULL);
}
