// A random program on one engine: 1 to 16 threads that push every kind of op over shared and short-lived Vars, while
// completions come from threads of their own. What happened is left in an Oracle.
#pragma once

#include "oracle.h"
#include "support/engine_test.h"
#include "support/seed.h"

namespace engine::test {

struct Shape {
  int workers = 2;
  int pushers = 4;
  int ops = 1000;  // a pusher
  uint32_t vars = 8;
  size_t max_pending = 16384;
  Policy policy = Policy::kThreaded;
  bool fails = false;   // failures, ClearError, run_always, cancels
  bool nested = false;  // pushes and waits inside ops
  int bulk = 0;         // each pusher's bulk size, with ops on a device; above 1 with scopes of other sizes in between
};

// From the seed: workers 0..8, pushers 1..16, small and large bounds and so on.
Shape RandomShape(Random& random);
std::string Describe(const Shape& shape);

// Runs it and checks; the first contradiction, or "".
std::string RunProgram(const Shape& shape, uint64_t seed);

}  // namespace engine::test
