// One random program from its seed and shape: run it, and say what was wrong with it.
//
// Threads: one program at a time in a process.
#pragma once

#include <string>

#include "records.h"
#include "shape.h"

namespace engine::oracle {

struct Program {
  uint64_t seed = 0;
  Shape shape;
};

// A line that says it all, and back. Errors: std::invalid_argument.
std::string Describe(const Program& program);
Program ParseProgram(const std::string& line);

// What was wrong, a line each; "" if nothing was. Ends the process, with `kHung`, when nothing has happened for a long time.
std::string RunProgram(const Program& program, Totals* totals);
inline constexpr int kHung = 4;
int HangLimit();  // in seconds

}  // namespace engine::oracle
