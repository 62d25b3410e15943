// Shape: the options of one random program, and how they are drawn from a seed. As text it is a list of name=number,
// which the command line accepts, so that every failing program can be run again, and shrunk.
//
// Errors: std::invalid_argument for text that is not such a list.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "features.h"

namespace engine::oracle {

// How a program ends.
enum class Ending : int64_t {
  kWaitAll,         // everything is waited for, then the engine is destroyed
  kShutdown,        // Shutdown, while ops of all kinds are still held
  kDestroyed,       // the engine is destroyed, while ops of all kinds are still held
  kWithheld,        // some completions never come
  kShutdownBeside,  // another thread calls Shutdown while all others go on
};

struct Shape {
  int64_t workers = 2, io_threads = 1, pool_threads = 1, spares = 512;
  int64_t pushers = 4, ops = 100;  // ops: for each pusher
  int64_t vars = 8, apart = 0;     // `apart`: Vars whose ops never wait, so that bodies of other ops may wait for them
  int64_t max_pending = 64, spin_us = 20;
  int64_t policy = 0, stall_ms = 0;
  int64_t fail_in = 200;  // one op in so many fails
  int64_t bulk = 20;      // the largest bulk size
  int64_t wide = 0;       // one op in so many is wide; 0: none
  int64_t noise = 0;      // one point in so many is delayed; 0: none
  Ending ending = Ending::kWaitAll;
  uint64_t features = 0;

  bool Has(uint64_t feature) const { return (features & feature) != 0; }
};

// The shape of a seed. It uses no feature outside `allowed`.
Shape RandomShape(uint64_t seed, uint64_t allowed, int64_t ops);
// Removes combinations that a shape cannot have, after it was changed.
void MakeConsistent(Shape& shape);

std::string Describe(const Shape& shape);
// Sets the members of `shape` that `text` names.
void ParseShape(std::string_view text, Shape& shape);

}  // namespace engine::oracle
