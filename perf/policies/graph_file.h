// Graph files: the costs and edges of a program that was recorded (graphs/record.py), as text.
//
//   engine-graph 1
//   # what was recorded
//   1200                one node a line: its cost in nanoseconds, and the nodes before it, counted from 0
//   81000/45000 0       after the slash: its cost with two threads
//
// Threads: pure. Errors: GraphFileError, which names the file and the line; nothing of such a file is used.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace perf {

struct RecordedNode {
  double nanos = 0;
  double with_two = 0;           // threads; 0: not measured, or no faster
  std::vector<uint32_t> before;  // ascending; all of them earlier nodes
};

struct GraphFileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr uint32_t kMostRecorded = 1'000'000;    // nodes of a file
inline constexpr uint64_t kMostNanos = 60'000'000'000;  // of a node

std::vector<RecordedNode> ParseGraph(const std::string& text, const std::string& where);
std::vector<RecordedNode> ReadGraph(const std::string& path);
std::string GraphText(const std::vector<RecordedNode>& nodes);

}  // namespace perf
