#include "graph_file.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

namespace perf {
namespace {

constexpr std::string_view kHeader = "engine-graph 1";

// Takes a number off the line's front; false if there is none.
bool Take(std::string_view& line, uint64_t* number) {
  const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), *number);
  if (error != std::errc{}) return false;
  line.remove_prefix(static_cast<size_t>(stop - line.data()));
  return true;
}

}  // namespace

std::vector<RecordedNode> ParseGraph(const std::string& text, const std::string& where) {
  std::vector<RecordedNode> nodes;
  std::istringstream in(text);
  std::string buffer;
  for (int number = 1; std::getline(in, buffer); ++number) {
    const auto refuse = [&](const std::string& what) {
      throw GraphFileError(where + ", line " + std::to_string(number) + ": " + what);
    };
    if (in.eof()) refuse("the file ends in the middle of a line, so it was cut off; record it again");
    if (number == 1) {
      if (buffer != kHeader)
        refuse("this is no graph file of this version: its first line is '" + buffer.substr(0, 40) + "' and must be '" +
               std::string(kHeader) + "'");
      continue;
    }
    if (buffer.empty() || buffer[0] == '#') continue;
    std::string_view line = buffer;
    uint64_t nanos = 0, with_two = 0, before = 0;
    const auto unlike = [&] {
      refuse("'" + buffer.substr(0, 60) + "' is not 'NANOSECONDS[/WITH TWO] [NODE BEFORE] ...'");
    };
    if (!Take(line, &nanos)) unlike();
    if (line.starts_with('/')) {
      line.remove_prefix(1);
      if (!Take(line, &with_two)) unlike();
      if (with_two == 0 || with_two >= nanos)
        refuse("with two threads a node must take less than with one, and not nothing");
    }
    if (nanos == 0 || nanos > kMostNanos)
      refuse("a node takes 1 to " + std::to_string(kMostNanos) + " nanoseconds, not " + std::to_string(nanos));
    if (nodes.size() == kMostRecorded) refuse("a graph has at most " + std::to_string(kMostRecorded) + " nodes");
    RecordedNode node{static_cast<double>(nanos), static_cast<double>(with_two), {}};
    while (!line.empty()) {
      if (line[0] != ' ') unlike();
      line.remove_prefix(1);
      if (!Take(line, &before)) unlike();
      if (before >= nodes.size())
        refuse("node " + std::to_string(nodes.size()) + " comes after node " + std::to_string(before) +
               ", which is not an earlier one");
      if (!node.before.empty() && before <= node.before.back())
        refuse("the nodes before a node must be ascending, and each named once");
      node.before.push_back(static_cast<uint32_t>(before));
    }
    nodes.push_back(std::move(node));
  }
  if (nodes.empty()) throw GraphFileError(where + ": there is no node in it");
  return nodes;
}

std::vector<RecordedNode> ReadGraph(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw GraphFileError("cannot read graph file '" + path + "': " + std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  return ParseGraph(text.str(), "graph file '" + path + "'");
}

std::string GraphText(const std::vector<RecordedNode>& nodes) {
  std::string out(kHeader);
  out += '\n';
  for (const RecordedNode& node : nodes) {
    out += std::to_string(static_cast<uint64_t>(node.nanos));
    if (node.with_two > 0) out += '/' + std::to_string(static_cast<uint64_t>(node.with_two));
    for (const uint32_t before : node.before) out += ' ' + std::to_string(before);
    out += '\n';
  }
  return out;
}

}  // namespace perf
