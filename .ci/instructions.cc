// Pushes ops with the naive policy on one thread, to be counted under callgrind: instructions.sh runs it with two N and
// takes the difference, so that start-up and end cancel.
//   instructions CASE N [alone]     CASE: 0, 1w, 1w1r, 1w2r (how many Vars an op writes and reads), operator (1w2r,
//                                   registered). alone: no second thread has pushed
#include <engine/engine.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  const bool alone = argc == 4 && std::string(argv[3]) == "alone";
  if (argc != 3 && !alone) return 2;
  const std::string name = argv[1];
  const int n = std::atoi(argv[2]);
  engine::Engine eng({.workers = 0, .policy = engine::Policy::kNaive});
  const engine::Var a = eng.NewVar("a"), b = eng.NewVar("b"), c = eng.NewVar("c");
  // Programs push from several threads, so the counts on record are for an engine that two have used.
  if (!alone) std::thread([&] { eng.Push({.writes = {a}}, [] {}); }).join();
  long ran = 0;
  const auto body = [&ran] { ++ran; };
  // Written out: the sets are part of the call, and so of its cost.
  if (name == "0") {
    for (int i = 0; i < n; ++i) eng.Push({.name = "op"}, body);
  } else if (name == "1w") {
    for (int i = 0; i < n; ++i) eng.Push({.name = "op", .writes = {a}}, body);
  } else if (name == "1w1r") {
    for (int i = 0; i < n; ++i) eng.Push({.name = "op", .reads = {b}, .writes = {a}}, body);
  } else if (name == "1w2r") {
    for (int i = 0; i < n; ++i) eng.Push({.name = "op", .reads = {b, c}, .writes = {a}}, body);
  } else if (name == "operator") {
    const engine::Operator op = eng.NewOperator({.name = "op", .reads = {b, c}, .writes = {a}}, body);
    for (int i = 0; i < n; ++i) eng.Push(op);
  } else {
    return 2;
  }
  eng.WaitAll();
  if (ran != n) {
    std::fprintf(stderr, "%ld of %d ops ran\n", ran, n);
    return 1;
  }
}
