// Shrink: finds a smaller program that still fails. Failures depend on chance, so each candidate gets several tries,
// with the same seed and with others.
//
// Errors: none. A program that does not fail again is returned as it is.
#pragma once

#include "program.h"

namespace engine::oracle {

// Prints each step. Takes at most `seconds`.
Program Shrink(const Program& program, int tries, double seconds);

}  // namespace engine::oracle
