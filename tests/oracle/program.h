// One random program, made from its seed and shape: runs it, and says what was wrong.
//
// Threads: one program at a time in a process.
#pragma once

#include <chrono>
#include <string>

#include "records.h"
#include "shape.h"
#include "support/sanitizers.h"

namespace engine::oracle {

using Clock = std::chrono::steady_clock;

struct Program {
  uint64_t seed = 0;
  Shape shape;
};

// A program as one line, and the program of such a line. Errors: std::invalid_argument.
std::string Describe(const Program& program);
Program ParseProgram(const std::string& line);

// Returns what was wrong, a line for each complaint; "" if nothing was. Ends the process with `kHung` if nothing has
// happened for a long time.
std::string RunProgram(const Program& program, Totals* totals);
inline constexpr int kHung = 4;
// In seconds. Set before the first program (--hang).
inline int hang_limit = test::kSanitized ? 120 : 40;

}  // namespace engine::oracle
