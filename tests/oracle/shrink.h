// Shrink: a smaller program that still fails. Failures are a matter of chance, so each candidate gets several tries, with the
// seed itself and with others.
//
// Errors: none; a program that does not fail again is returned as it is.
#pragma once

#include "program.h"

namespace engine::oracle {

// Prints each step. At most `seconds`.
Program Shrink(const Program& program, int tries, double seconds);

}  // namespace engine::oracle
