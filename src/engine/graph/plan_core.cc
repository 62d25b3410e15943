// Compiles a layout into arrays, and keeps the pool of frames.
#include "graph/plan_core.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_map>

#include "core/core.h"

namespace engine::detail {
namespace {

constexpr std::align_val_t kFrameAlign{64};

// In a graph no body runs, so nothing could skip the node.
bool MayBeInGraph(const Graph::Node& node) { return node.graph.kind != 0 && !node.async && !node.cancelled; }

size_t Rounded(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

}  // namespace

PlanCore::PlanCore(EngineCore& engine_core, const Graph& recorded, const PlanOptions& plan_options)
    : core(&engine_core), graph(recorded), options(plan_options) {
  const PlanLayout layout = LayOut(graph, options);
  orders = layout.orders;
  for (const Graph::Node& node : graph.nodes())
    for (const Effect& effect : node.effects)
      core->CheckVar(effect.var.core(), "effects", node.name.c_str(), node.site);
  if (layout.vars.size() + 1 > Protocol::kMaxAccesses)
    throw UsageError("the graph names " + std::to_string(layout.vars.size()) + " Vars; the most is " +
                     std::to_string(Protocol::kMaxAccesses - 1));

  priority = graph.nodes().empty() ? 0 : kMinPriority;
  for (const Graph::Node& node : graph.nodes()) priority = std::max(priority, node.priority);

  std::unordered_map<VarCore*, uint32_t> place;
  for (uint32_t v = 0; v < layout.vars.size(); ++v) place.emplace(layout.vars[v].core(), v);
  const auto at = [](const auto& list) { return static_cast<uint32_t>(list.size()); };
  for (uint32_t i = 0; i <= layout.order.size(); ++i) {
    PlanNode n{};
    n.inputs = at(node_inputs);
    n.outputs = at(node_outputs);
    n.effects = at(node_effects);
    n.ends = at(node_ends);
    if (i < layout.order.size()) {
      const Graph::Node& node = graph.nodes()[layout.order[i]];
      n.run = node.kernel->type->run;
      n.closure = node.kernel->memory;
      n.name = node.name.c_str();
      n.file = node.site.file;
      n.line = node.site.line;
      n.recorded = layout.order[i];
      n.threads = options.schedule.threads.empty() ? static_cast<uint8_t>(node.threads)
                                                   : options.schedule.threads[layout.order[i]];
      has_wide |= n.threads > 1;
      n.flags =
          static_cast<uint8_t>((node.async ? PlanNode::kEndsLater : 0) | (node.run_always ? PlanNode::kAlways : 0) |
                               (node.cancelled ? PlanNode::kHasScope : 0));
      for (ValueId v : node.inputs) node_inputs.push_back(v.index);
      for (ValueId v : node.outputs) node_outputs.push_back(v.index);
      for (const Effect& e : node.effects) node_effects.push_back({place.at(e.var.core()), e.mode});
      node_ends.insert(node_ends.end(), layout.ends[i].begin(), layout.ends[i].end());
      scopes.push_back(node.cancelled);
    }
    nodes.push_back(n);
  }
  awaited.resize(layout.tasks.size());
  const auto on_device = [&](uint32_t t) {
    const Placement& on = graph.nodes()[layout.order[layout.tasks[t].first]].place;
    return on.kind != Placement::Kind::kDefault && core->pools().OnDevice(core->pools().Index(on));
  };
  for (uint32_t i = 0; i < layout.tasks.size(); ++i) {
    const PlanLayout::Task& from = layout.tasks[i];
    const Graph::Node& last = graph.nodes()[layout.order[from.end - 1]];
    PlanTask task{};
    task.first = from.first;
    task.end = from.end;
    task.successors = at(successors);
    for (const uint32_t s : from.successors) successors.push_back({s, layout.task_counter[s]});
    task.successors_end = at(successors);
    task.predecessors = from.predecessors;
    task.pool = last.place.kind == Placement::Kind::kDefault ? kDefaultPool : core->pools().Index(last.place);
    task.async = last.async;
    if (core->pools().OnDevice(task.pool)) {
      task.pool = kDefaultPool;  // whoever comes to the task pushes it to the device
      task.async = from.end - from.first;
      task.device = true;
    }
    has_device |= task.device;
    concurrent |= task.pool != kDefaultPool || task.device;
    task.ticket = task.async || task.pool != kDefaultPool ? tickets++ : kNoIndex;
    uint32_t first_behind = kNoIndex;  // the first task that its end releases
    for (const uint32_t s : from.successors)
      if (!task.device || !on_device(s)) first_behind = std::min(first_behind, s);
    if (task.ticket != kNoIndex && first_behind != kNoIndex) awaited[first_behind].push_back(task.ticket);
    remaining += task.async ? 2 : 1;
    if (from.predecessors == 0) sources.push_back(i);
    tasks.push_back(task);
  }
  std::reverse(sources.begin(), sources.end());
  // Tasks with other placements come first: a run posts them before it works itself.
  std::stable_partition(sources.begin(), sources.end(), [&](uint32_t t) { return tasks[t].pool == kDefaultPool; });
  counters = layout.counters;
  by_urgency = layout.by_urgency;
  for (uint32_t i = 0; i < by_urgency.size(); ++i) tasks[by_urgency[i]].urgency = i;

  single_use.resize(graph.values().size());
  std::vector<uint32_t> named(graph.values().size());
  for (const Graph::Node& node : graph.nodes())
    for (ValueId v : node.inputs) ++named[v.index];
  for (uint32_t v = 0; v < single_use.size(); ++v) single_use[v] = named[v] == 1;
  output_of.assign(graph.values().size(), kNoIndex);
  for (uint32_t output = at(graph.outputs()); output-- > 0;) {
    const uint32_t v = graph.outputs()[output].index;
    single_use[v] = false;
    if (named[v] == 0) output_of[v] = output;  // nodes that use it would race with an op that changes it
  }
  std::vector<bool> ended(graph.values().size());
  for (const PlanLayout::End& e : node_ends)
    if (e.what < PlanLayout::kVarEnd) ended[e.what] = true;
  for (uint32_t v = 0; v < ended.size(); ++v)
    if (!ended[v]) left_over.push_back(v);

  vars = layout.vars;
  std::vector<uint32_t> sorted(vars.size());
  std::iota(sorted.begin(), sorted.end(), 0u);
  const auto core_of = [&](uint32_t v) { return vars[v].core(); };
  std::sort(sorted.begin(), sorted.end(), [&](uint32_t a, uint32_t b) { return core_of(a) < core_of(b); });
  access_of.resize(vars.size());
  for (uint32_t i = 0; i < sorted.size(); ++i) {
    access_of[sorted[i]] = i;
    var_of.push_back(sorted[i]);
    const AccessMode mode = layout.modes[sorted[i]];
    reads += mode == AccessMode::kRead;
    accesses.push_back({core_of(sorted[i]), uint64_t{i} << 2 | static_cast<uint64_t>(mode)});
  }
  ordered_there.assign(accesses.size(), concurrent);
  FindHostFirst();
  FindSegments();
  FindUsers();
  core->Retain();
}

void PlanCore::NoteTaskNanos(int64_t mean) const {
  const auto is_long = [](int64_t nanos) { return nanos >= tuning::kSharedTaskNanos; };
  const int64_t known = task_nanos.load(std::memory_order_relaxed);
  // Not at each run, because threads with runs of their own would share the line.
  if (known == 0 || is_long(known) != is_long(mean)) task_nanos.store(mean + 1, std::memory_order_relaxed);
}

// If a node on the host may touch a Var before a write on a device has been ordered behind what was before the run, the
// run must not begin until that earlier work has retired. Accesses of all other Vars are ordered on the device.
void PlanCore::FindHostFirst() {
  std::vector<bool> written(vars.size());
  std::vector<uint32_t> position(graph.nodes().size());
  for (uint32_t n = 0; n + 1 < nodes.size(); ++n) position[nodes[n].recorded] = n;
  std::vector<bool> there(nodes.size());
  for (const PlanTask& task : tasks)
    for (uint32_t n = task.first; n < task.end; ++n) there[n] = task.device;
  for (const uint32_t n : position) {  // in the order of recording, which is the order of a Var's effects
    for (const PlanEffect& effect : EffectsOf(nodes[n])) {
      if (there[n]) {
        if (effect.mode != AccessMode::kRead) written[effect.var] = true;
      } else if (!written[effect.var]) {
        ordered_there[access_of[effect.var]] = false;
      }
    }
  }
}

// Which tasks on devices can be one op each: those whose every node may be in a graph.
void PlanCore::FindSegments() {
  segments.resize(tickets);
  if (!options.static_alloc) return;
  for (const PlanTask& task : tasks) {
    if (!task.device || task.end - task.first < 2) continue;
    const std::span<const PlanNode> of_task(nodes.data() + task.first, task.end - task.first);
    const auto recorded = [&](const PlanNode& n) -> const Graph::Node& { return graph.nodes()[n.recorded]; };
    if (!std::ranges::all_of(of_task, [&](const PlanNode& n) { return MayBeInGraph(recorded(n)); })) continue;
    PlanSegment& segment = segments[task.ticket];
    segment.name = Name::Intern(std::string(of_task.front().name) + " ... " + of_task.back().name + " (" +
                                std::to_string(of_task.size()) + " nodes)");
    segment.priority = recorded(*std::ranges::max_element(of_task, {}, [&](const PlanNode& n) {
                         return recorded(n).priority;
                       })).priority;
    std::unordered_map<uint32_t, size_t> seen;
    for (const PlanEffect& effect : Part(node_effects, of_task.front().effects, nodes[task.end].effects)) {
      const auto [at, fresh] = seen.emplace(effect.var, segment.effects.size());
      if (fresh) {
        segment.effects.push_back(effect);
      } else if (AccessMode& mode = segment.effects[at->second].mode; mode == AccessMode::kRead) {
        mode = effect.mode == AccessMode::kRead ? AccessMode::kRead : AccessMode::kUpdate;
      }
    }
    for (const PlanLayout::End& end : Part(node_ends, of_task.front().ends, nodes[task.end].ends))
      if (end.what >= PlanLayout::kVarEnd) segment.ends.push_back(end);
  }
}

PlanCore::~PlanCore() {
  {
    MutexLock lock(frames_mu);
    for (auto& frame : frames) std::destroy_n(frame->values, graph.values().size());
    frames.clear();
  }
  vars.clear();
  core->Release();
}

std::unique_ptr<RunState> PlanCore::NewFrame() {
  auto run = std::make_unique<RunState>();
  const size_t n_values = graph.values().size();
  const size_t sizes[] = {n_values * sizeof(Value),
                          counters.size() * sizeof(uint32_t),
                          tasks.size() * sizeof(uint32_t),
                          (n_values + vars.size()) * sizeof(ErrorRecord*),
                          tickets * sizeof(OpRecord*),
                          RankQueue::WordsFor(static_cast<uint32_t>(by_urgency.size())) * sizeof(uint64_t)};
  size_t bytes = 0;
  for (size_t size : sizes) bytes += Rounded(size);
  auto* memory = static_cast<std::byte*>(::operator new(std::max<size_t>(bytes, 64), kFrameAlign));
  run->block = {memory, [](std::byte* p) { ::operator delete(p, kFrameAlign); }};
  std::memset(memory, 0, bytes);
  auto part = [&, i = size_t{0}]() mutable { return std::exchange(memory, memory + Rounded(sizes[i++])); };
  run->values = reinterpret_cast<Value*>(part());
  std::uninitialized_default_construct_n(run->values, n_values);
  run->counters = reinterpret_cast<std::atomic<uint32_t>*>(part());
  for (size_t i = 0; i < counters.size(); ++i) ::new (&run->counters[i]) std::atomic<uint32_t>(counters[i]);
  run->next = reinterpret_cast<uint32_t*>(part());
  run->errors = reinterpret_cast<ErrorRecord**>(part());
  run->tickets = reinterpret_cast<OpRecord**>(part());
  MutexLock lock(run->ready_mu);
  run->ready = RankQueue(reinterpret_cast<uint64_t*>(part()), static_cast<uint32_t>(by_urgency.size()));
  run->owner = this;
  run->core = core;
  run->done = NewDone();
  run->task_vars.resize(tickets);
  run->behind.resize(tickets);
  run->graphs.resize(tickets);
  for (const PlanTask& task : tasks) {
    if (!task.device) continue;
    run->task_vars[task.ticket] = EngineCore::AdoptVar(core->NewVar(nodes[task.first].name));
    for (const PlanSuccessor& s : SuccessorsOf(task))
      if (tasks[s.task].device) run->behind[tasks[s.task].ticket].push_back(run->task_vars[task.ticket]);
  }
  static std::atomic<uint64_t> frames_made{0};  // relaxed: the numbers only have to differ
  run->frame_key = frames_made.fetch_add(1, std::memory_order_relaxed) * 0xbf58476d1ce4e5b9;
  return run;
}

// The place that a thread looks at first. Slots are cache lines apart, so their addresses tell threads apart.
static size_t FirstPlace(EngineCore& core) { return reinterpret_cast<uintptr_t>(&core.Slot()) / sizeof(ThreadSlot); }

Var PlanCore::NewDone() { return EngineCore::AdoptVar(core->NewVar(options.name.c_str())); }

// For a frame whose last run failed.
void PlanCore::MakeDone(RunState& run) {
  try {
    run.done = NewDone();
  } catch (...) {
    ReturnFrame(&run);
    throw;
  }
}

RunState* PlanCore::TakeFrame() {
  const size_t first = FirstPlace(*core);
  for (Places* at = &places; at; at = at->more.load(std::memory_order_acquire)) {
    for (size_t i = 0; i < at->place.size(); ++i) {
      std::atomic<RunState*>& place = at->place[(first + i) % at->place.size()].frame;
      if (!place.load(std::memory_order_relaxed)) continue;
      RunState* const run = place.exchange(nullptr, std::memory_order_acquire);
      if (!run) continue;
      if (!run->done) [[unlikely]]
        MakeDone(*run);
      return run;
    }
  }
  if (has_device) core->devices().AskOwners();  // runs may be over that nobody has waited for: their frames come back
  auto made = NewFrame();
  MutexLock lock(frames_mu);
  if (frames.size() == places.place.size() * (1 + more_places.size())) {
    auto more = std::make_unique<Places>();
    more_places.reserve(more_places.size() + 1);
    frames.reserve(frames.size() + 1);
    (more_places.empty() ? places : *more_places.back()).more.store(more.get(), std::memory_order_release);
    more_places.push_back(std::move(more));
  }
  frames.push_back(std::move(made));
  return frames.back().get();
}

void PlanCore::ReturnFrame(RunState* run) {
  const size_t first = FirstPlace(*core);
  // A second round happens only if other threads filled every place that was free when we looked, and emptied one that
  // was not.
  for (Places* at = &places;; at = at->more.load(std::memory_order_acquire)) {
    if (!at) at = &places;
    for (size_t i = 0; i < at->place.size(); ++i) {
      std::atomic<RunState*>& place = at->place[(first + i) % at->place.size()].frame;
      RunState* none = nullptr;
      if (!place.load(std::memory_order_relaxed) &&
          place.compare_exchange_strong(none, run, std::memory_order_release, std::memory_order_relaxed))
        return;
    }
  }
}

}  // namespace engine::detail
