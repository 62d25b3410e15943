// Plans for people: tasks as data, as text, and as DOT.
#include <locale>
#include <sstream>

#include "graph/plan_core.h"

namespace engine {
namespace {

std::string Escaped(const char* text) {
  std::string out;
  for (; *text; ++text) {
    if (*text == '"' || *text == '\\') out += '\\';
    out += *text;
  }
  return out;
}

std::string PlaceText(const Placement& place) {
  switch (place.kind) {
    case Placement::Kind::kDefault: return "";
    case Placement::Kind::kPool: return "pool " + std::to_string(place.index);
    case Placement::Kind::kIo: return "io";
    case Placement::Kind::kCopyIn: return "copy_in " + std::to_string(place.index);
    case Placement::Kind::kCopyOut: return "copy_out " + std::to_string(place.index);
    case Placement::Kind::kGpu: return "gpu " + std::to_string(place.index);
    case Placement::Kind::kCommunicator: return "communicator " + std::to_string(place.index);
  }
  return "";
}

}  // namespace

std::vector<Plan::Task> Plan::tasks() const {
  const detail::PlanCore& plan = Core("tasks");
  std::vector<Task> out;
  for (const detail::PlanTask& task : plan.tasks) {
    Task t;
    for (uint32_t n = task.first; n < task.end; ++n) t.nodes.push_back(plan.nodes[n].recorded);
    const auto successors = plan.SuccessorsOf(task);
    for (const auto& s : successors) t.successors.push_back(s.task);
    t.predecessors = task.predecessors;
    t.device = task.device;
    out.push_back(std::move(t));
  }
  return out;
}

std::string Plan::Describe() const {
  const detail::PlanCore& plan = Core("Describe");
  std::ostringstream out;
  out.imbue(std::locale::classic());  // so that numbers have no separators, whatever locale the program has set
  out << "plan " << detail::Quote(plan.options.name) << ": " << plan.graph.nodes().size() << " nodes in "
      << plan.tasks.size() << " tasks, " << plan.successors.size() << " edges, " << plan.counters.size()
      << " counters, " << plan.graph.values().size() << " values, " << plan.vars.size() << " Vars\n";
  for (uint32_t t = 0; t < plan.tasks.size(); ++t) {
    const detail::PlanTask& task = plan.tasks[t];
    out << "  task " << t << ":";
    for (uint32_t n = task.first; n < task.end; ++n) out << (n == task.first ? " " : ", ") << plan.nodes[n].name;
    const std::string place = PlaceText(plan.graph.nodes()[plan.nodes[task.first].recorded].place);
    if (!place.empty()) out << " on " << place;
    if (task.async) out << " (asynchronous)";
    const auto successors = plan.SuccessorsOf(task);
    for (size_t i = 0; i < successors.size(); ++i) out << (i ? ", " : " -> ") << successors[i].task;
    out << "\n";
  }
  return out.str();
}

std::string Plan::Dot() const {
  const detail::PlanCore& plan = Core("Dot");
  const Graph& graph = plan.graph;
  std::ostringstream out;
  out.imbue(std::locale::classic());  // so that numbers have no separators, whatever locale the program has set
  out << "digraph \"" << Escaped(plan.options.name.c_str()) << "\" {\n  rankdir=LR;\n  node [shape=box];\n";
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Graph::Node& node = graph.nodes()[n];
    out << "  n" << n << " [label=\"" << Escaped(node.name.c_str());
    for (const Effect& e : node.effects) out << "\\n" << AccessModeName(e.mode) << " " << Escaped(e.var.name());
    if (const std::string place = PlaceText(node.place); !place.empty()) out << "\\non " << place;
    out << "\"];\n";
  }
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Graph::ValueInfo& value = graph.values()[graph.inputs()[i].index];
    out << "  in" << i << " [shape=ellipse, label=\"" << Escaped(value.name.c_str()) << "\"];\n";
    for (uint32_t consumer : value.consumers) out << "  in" << i << " -> n" << consumer << ";\n";
  }
  for (const Graph::Edge& e : graph.Edges())
    out << "  n" << e.from << " -> n" << e.to << (e.kind == Graph::Edge::Kind::kValue ? "" : " [style=dashed]")
        << ";\n";
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    out << "  out" << i << " [shape=ellipse];\n";
    const uint32_t producer = graph.values()[graph.outputs()[i].index].producer;
    if (producer != UINT32_MAX) out << "  n" << producer << " -> out" << i << ";\n";
  }
  out << "}\n";
  return out.str();
}

}  // namespace engine
