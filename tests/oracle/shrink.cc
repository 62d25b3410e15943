#include "shrink.h"

#include <cstdio>
#include <vector>

#include "supervisor.h"

namespace engine::oracle {
namespace {

// Programs that are one step smaller, starting with the largest step.
std::vector<Shape> Smaller(const Shape& shape) {
  std::vector<Shape> candidates;
  const auto add = [&](auto&& change) {
    Shape smaller = shape;
    change(smaller);
    MakeConsistent(smaller);
    if (Describe(smaller) != Describe(shape)) candidates.push_back(smaller);
  };
  const auto lower = [&](int64_t Shape::*member, int64_t least) {
    add([&](Shape& s) { s.*member = least; });
    if (shape.*member > least) {
      add([&](Shape& s) { s.*member = (s.*member + least) / 2; });
      add([&](Shape& s) { --(s.*member); });
    }
  };
  for (const FeatureInfo& f : Features()) add([&](Shape& s) { s.features &= ~uint64_t{f.bit}; });
  lower(&Shape::ops, 1);
  lower(&Shape::pushers, 1);
  lower(&Shape::vars, 1);
  lower(&Shape::apart, 0);
  lower(&Shape::workers, 0);
  lower(&Shape::noise, 0);
  lower(&Shape::wide, 0);
  lower(&Shape::policy, 0);
  lower(&Shape::stall_ms, 0);
  lower(&Shape::bulk, 0);
  lower(&Shape::io_threads, 1);
  lower(&Shape::pool_threads, 1);
  add([](Shape& s) { s.max_pending = 16384; });
  add([](Shape& s) { s.spin_us = 0; });
  add([](Shape& s) { s.ending = Ending::kWaitAll; });
  return candidates;
}

bool Fails(const Program& program, int tries, Clock::time_point until, Program* failing) {
  bool fails = false;
  Supervisor supervisor(
      [&](uint64_t number) -> std::optional<Program> {
        if (number >= static_cast<uint64_t>(tries)) return {};
        // Every other try uses another seed of the same shape.
        return Program{number % 2 == 0 ? program.seed : program.seed + number * 1'000'003, program.shape};
      },
      [&](const Program& bad) {
        fails = true;
        *failing = bad;
      },
      false);
  supervisor.Run(until, 1);
  return fails;
}

}  // namespace

Program Shrink(const Program& program, int tries, double seconds) {
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  Program least = program;
  for (bool progress = true; progress && Clock::now() < until;) {
    progress = false;
    for (const Shape& shape : Smaller(least.shape)) {
      if (Clock::now() >= until) break;
      Program failing;
      if (!Fails({least.seed, shape}, tries, until, &failing)) continue;
      least = failing;
      progress = true;
      printf("smaller: %s\n", Describe(least).c_str());
      fflush(stdout);
      break;
    }
  }
  return least;
}

}  // namespace engine::oracle
