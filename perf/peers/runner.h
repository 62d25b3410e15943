// runner: a server on stdin and stdout that runs cases on one contender.
// Each contender is a process of its own, because libgomp and libomp cannot share one. A request is a line `CASE N`;
// the answer is one line of JSON: {"ns_per_op": 123.4, ...} or {"skip": "reason"}. The runner ends at the end of its
// input.
//
// A contender is a Backend:
//   Backend(const Config&)           creates the pool and kAllVars variables
//   void Push(Op<R, U>)              one operation, ordered by its Vars
//   void PushBlocked(VarId, Gate&)   one that updates the Var, and only once the gate is open
//   void WaitAll(), void Wait(VarId)
//   std::string WhyNot(case)         empty, or why this contender cannot run the case
// and, where it needs them:
//   void Session(f)                  runs f where pushing is legal (an arena, a parallel region)
//   Answer Pushers(k, n, f)          its own way to have k threads push; f(i) pushes the share of thread i
//   void PushShared(op)              Push for threads whose Vars overlap
//   void Rerun()                     runs the program just pushed again; contenders that build a graph
//   void Clear()                     forgets the program; not timed
//   std::size_t MaxPending()         more ops than this cannot be held back
//   Answer Extra(case, n)            cases of its own
#pragma once

#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>

#include "cases.h"

namespace perf {

inline std::string ToJson(const Answer& answer) {
  std::ostringstream out;
  out.precision(9);
  if (!answer.skip.empty()) {
    out << "{\"skip\": \"" << answer.skip << "\"}";
    return out.str();
  }
  out << '{';
  for (const char* comma = ""; const auto& [name, value] : answer.figures) {
    out << comma << '"' << name << "\": " << value;
    comma = ", ";
  }
  out << '}';
  return out.str();
}

inline Config ParseArgs(int argc, char** argv) {
  Config config;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--workers") config.workers = std::atoi(argv[i + 1]);
    if (flag == "--variant") config.variant = argv[i + 1];
  }
  return config;
}

// Answers go to the real stdout. What a library prints to stdout goes to stderr instead.
inline FILE* TakeStdout() {
  FILE* answers = fdopen(dup(STDOUT_FILENO), "w");
  dup2(STDERR_FILENO, STDOUT_FILENO);
  return answers;
}

template <class Backend>
void Serve(Backend& backend, FILE* answers) {
  std::string name;
  for (std::size_t n = 0; std::cin >> name >> n;) {
    Answer answer;
    try {
      answer = RunCase(backend, name, n);
    } catch (const std::exception& error) {
      answer = Answer::Skip(error.what());
    }
    std::fprintf(answers, "%s\n", ToJson(answer).c_str());
    std::fflush(answers);
  }
}

// If the constructor of `Backend` throws (because a library is missing), every case is skipped for that reason.
template <class Backend>
int Main(int argc, char** argv) {
  // The driver stops runners that do not have their turn. If the driver dies, they must not stay stopped for ever.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  KeepFreedMemory();
  FILE* answers = TakeStdout();
  try {
    Backend backend(ParseArgs(argc, argv));
    Serve(backend, answers);
  } catch (const std::exception& error) {
    Absent absent{error.what()};
    Serve(absent, answers);
  }
  return 0;
}

}  // namespace perf
