// What a test says about an exploration: how much was explored, and for a planted fault, the trace that shows it.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "explorer.h"

namespace checker {

inline void PrintSize(const Outcome& outcome, const std::string& what) {
  std::printf("[ explored ] %9llu states %9llu steps %6llu ends %4zu deep %6.2f s  %s\n",
              static_cast<unsigned long long>(outcome.states), static_cast<unsigned long long>(outcome.steps),
              static_cast<unsigned long long>(outcome.ends), outcome.deepest, outcome.seconds, what.c_str());
}

inline void ReportHolds(const Outcome& outcome, const std::string& what = "") {
  PrintSize(outcome, what);
  EXPECT_EQ(outcome.violation, "") << outcome.trace;
  EXPECT_GT(outcome.ends, 0u);
}

inline void ReportCaught(const Outcome& outcome, const std::string& rule, const std::string& what = "") {
  PrintSize(outcome, what);
  EXPECT_NE(outcome.violation.find(rule), std::string::npos) << "found: '" << outcome.violation << "'";
  std::printf("caught: %s\n%s", outcome.violation.c_str(), outcome.trace.c_str());
}

}  // namespace checker
