// An Explanation as text and as a drawing.
#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <locale>
#include <map>
#include <sstream>

#include "engine/spi/cost_model.h"

namespace engine {
namespace {

// Streams of the classic locale, here and below: the program's must not put a comma or separators into numbers.
std::string Fixed(double number) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::fixed << std::setprecision(2) << number;
  return out.str();
}
std::string Micros(double nanos) { return Fixed(nanos / 1e3) + " us"; }

// At most 40 bytes, and whole characters: those that continue one in UTF-8 begin with the bits 10.
std::string Short(const std::string& key) {
  size_t end = 40;
  if (key.size() <= end) return key;
  while (end > 0 && (static_cast<unsigned char>(key[end]) & 0xc0) == 0x80) --end;
  return key.substr(0, end);
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string Explanation::Text() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // the program's locale must not put separators into numbers
  out << "cost_model: " << said << "\n"
      << "  " << nodes.size() << " nodes in " << tasks
      << " tasks; pushed ops have no graph to rank, and run as under threaded\n";
  if (work == 0) return out.str() + "  no costs: nothing was measured\n";
  if (run > 0) out << "  costs of one run, which took " << Micros(run) << "\n";
  out << "  work T1 " << Micros(work) << ", critical path " << Micros(critical) << ", bound on " << workers
      << " workers " << Micros(bound) << "; dispatch " << Micros(dispatch) << "\n";
  if (before > 0) out << "  a step took " << Micros(before) << " as compiled";
  if (after > 0) out << ", " << Micros(after) << " with the schedule";
  if (makespan() > 0) out << (before > 0 ? "; " : "  ") << "makespan / bound " << Fixed(makespan() / bound) << "\n";
  char line[160];
  std::snprintf(line, sizeof(line), "  %-24s %12s %12s %12s %12s %6s\n", "node", "cost", "spread", "rank", "slack",
                "batch");
  out << line;
  for (const Node& n : nodes) {
    std::snprintf(line, sizeof(line), "  %-24s %12s %12s", Short(n.cost.key).c_str(), Micros(n.cost.nanos).c_str(),
                  Micros(n.cost.spread).c_str());
    out << line;
    std::snprintf(line, sizeof(line), " %12s %12s %6u%s%s\n", Micros(n.rank).c_str(), Micros(n.slack).c_str(), n.batch,
                  n.device ? " on a GPU" : "", n.critical ? " *" : "");
    out << line;
  }
  return out.str();
}

std::string Explanation::Dot() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // the program's locale must not put separators into numbers
  out << "digraph plan {\n  rankdir=LR;\n  node [shape=box];\n";
  std::map<uint32_t, std::vector<size_t>> batches;
  for (size_t n = 0; n < nodes.size(); ++n) batches[nodes[n].batch].push_back(n);
  for (const auto& [batch, members] : batches) {
    const bool several = members.size() > 1;
    if (several)
      out << "  subgraph cluster_" << batch << " {\n    style=dashed;\n    label=\"batch " << batch << "\";\n";
    for (const size_t n : members)
      out << (several ? "    n" : "  n") << n << " [label=\"" << Escaped(nodes[n].name) << "\\n"
          << Micros(nodes[n].cost.nanos) << "\\nrank " << Micros(nodes[n].rank) << "\""
          << (nodes[n].critical ? ", color=red" : "") << "];\n";
    if (several) out << "  }\n";
  }
  for (const Graph::Edge& e : edges) {
    const auto at = std::find(path.begin(), path.end(), e.from);
    const bool critical_edge = at != path.end() && at + 1 != path.end() && *(at + 1) == e.to;
    out << "  n" << e.from << " -> n" << e.to << (critical_edge ? " [color=red]" : "") << ";\n";
  }
  out << "}\n";
  return out.str();
}

}  // namespace engine
