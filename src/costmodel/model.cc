#include "model.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <new>
#include <set>
#include <tuple>

#include "batching.h"
#include "cost_file.h"
#include "widths.h"

namespace engine {

namespace {

// All models, for forks. Locked over a fork. No model's lock is taken before it.
constinit std::mutex g_models_mu;
std::set<costmodel::Model*>& Models() {
  static auto* models = new std::set<costmodel::Model*>;  // never destroyed: a plan may outlive main
  return *models;
}

}  // namespace

std::shared_ptr<CostModel> CostModel::New(const Plan& plan, int workers) {
  return std::make_shared<costmodel::Model>(plan, workers);
}

void CostModel::BeforeFork() {
  g_models_mu.lock();
  for (costmodel::Model* model : Models()) model->LockForFork();
}

void CostModel::AfterFork(bool in_child) {
  for (costmodel::Model* model : Models()) {
    model->UnlockAfterFork();
    if (in_child) model->ForgetRuns();
  }
  g_models_mu.unlock();
}

namespace costmodel {
namespace {

using Edges = std::vector<Graph::Edge>;

// The dependencies without those that follow from others: the plan has them so, between its tasks and within its
// chains.
Edges ReducedEdges(const Plan& plan) {
  if (!plan.options().schedule.batch.empty()) return plan.graph().Edges();
  Edges edges;
  const std::vector<Plan::Task> tasks = plan.tasks();
  for (const Plan::Task& task : tasks) {
    for (size_t i = 1; i < task.nodes.size(); ++i)
      edges.push_back({task.nodes[i - 1], task.nodes[i], Graph::Edge::Kind::kOrder});
    for (const uint32_t s : task.successors)
      edges.push_back({task.nodes.back(), tasks[s].nodes.front(), Graph::Edge::Kind::kOrder});
  }
  return edges;
}

template <class Read>
double CostOf(Read&& read) {
  std::vector<double> costs(33);
  for (double& cost : costs) {
    const auto from = std::chrono::steady_clock::now();
    for (int i = 0; i < 4; ++i) read();
    cost = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - from).count() / 4;
  }
  return EstimateOf(costs).nanos;
}

using Outcome = CostModel::Report::Outcome;

std::string Rounded(double value, const char* format) {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

}  // namespace

Model::Model(const Plan& plan, int workers)
    : workers_(workers), edges_(ReducedEdges(plan)), dag_(static_cast<uint32_t>(plan.graph().nodes().size()), edges_) {
  const std::vector<Graph::Node>& nodes = plan.graph().nodes();
  std::unordered_map<std::string, uint32_t> named, met, number;
  for (const Graph::Node& node : nodes) ++named[node.name.c_str()];
  std::map<std::tuple<Placement::Kind, uint32_t, uint32_t, int>, uint32_t> kinds;
  for (const Graph::Node& node : nodes) {
    std::string key = node.cost_key.c_str();
    if (key.empty()) {
      key = node.name.c_str();
      if (named[key] > 1 || key.empty()) {  // a cost file needs a key
        const uint32_t nth = ++met[key];
        key += '#' + std::to_string(nth);
      }
    }
    const auto [at, fresh] = number.emplace(key, static_cast<uint32_t>(keys_.size()));
    if (fresh) keys_.push_back(key);
    key_of_.push_back(at->second);
    const Placement& place = node.place;
    const auto kind = kinds.emplace(std::tuple(place.kind, place.index, place.lane, node.priority), kinds.size());
    kind_.push_back(node.async ? kAlone : kind.first->second);
    measure_.push_back(node.async || place.kind != Placement::Kind::kDefault ? Measure::kClock : Measure::kProcessor);
    threads_.push_back(node.async ? 1 : static_cast<uint32_t>(node.threads));
    wide_key_of_.push_back(kNoKey);
    if (threads_.back() <= 1) continue;
    key += " with " + std::to_string(threads_.back()) + " threads";
    const auto [wide, new_one] = number.emplace(key, static_cast<uint32_t>(keys_.size()));
    if (new_one) keys_.push_back(key);
    wide_key_of_.back() = wide->second;
  }
  task_of_.resize(nodes.size());
  const std::vector<Plan::Task> tasks = plan.tasks();
  unit_.resize(nodes.size());
  for (uint32_t t = 0; t < tasks.size(); ++t) {
    for (const uint32_t n : tasks[t].nodes) {
      task_of_[n] = t;
      // On a device each of the plan's own tasks is a bulk, and no schedule splits or joins these.
      unit_[n] = tasks[t].device ? tasks[t].nodes.front() : n;
      if (tasks[t].device) measure_[n] = Measure::kDevice;
    }
  }
  std::lock_guard lock(g_models_mu);
  Models().insert(this);
}

Model::~Model() {
  std::lock_guard lock(g_models_mu);
  Models().erase(this);
}

void Model::ForgetRuns() {
  std::lock_guard lock(mu_);
  open_steps_.clear();
  for (auto& [number, shape] : shapes_) {
    shape->in_flight = 0;
    shape->building = false;
  }
}

std::shared_ptr<Model::Shape> Model::FindShape(uint64_t shape) {
  const auto at = shapes_.find(shape);
  if (at != shapes_.end()) return at->second;
  if (shapes_.size() == kMostShapes) return nullptr;
  auto made = std::make_shared<Shape>(keys_.size());
  if (TakeLoaded(shape, *made)) made->steps = window_.stop;  // its costs are known, so it skips the window
  return shapes_.emplace(shape, std::move(made)).first->second;
}

bool Model::TakeLoaded(uint64_t shape, Shape& into) const {
  std::vector<Estimate> costs;
  for (const std::string& key : keys_) {
    const auto at = loaded_.find({shape, key});
    if (at == loaded_.end()) return false;
    costs.push_back({at->second.samples, at->second.nanos, at->second.spread});
  }
  into.costs = std::move(costs);
  return true;
}

CostModel::Step Model::Issue(const std::shared_ptr<Shape>& shape, Step step, bool compared, uint64_t turn) {
  step.number = next_number_++;
  open_steps_.emplace(step.number, OpenStep{shape, compared, step.narrow, turn});
  return step;
}

CostModel::Step Model::Begin(const Plan& plan, CostWindow window, uint64_t shape_class) {
  std::unique_lock lock(mu_);
  if (window != window_) {  // measurements of another window do not count in this one
    window_ = window;
    shapes_.clear();
  }
  const std::shared_ptr<Shape> shape = FindShape(shape_class);
  if (!shape) {
    ++crowded_out_;
    return {};
  }
  Shape& s = *shape;
  if (s.state == State::kWaiting || s.state == State::kMeasuring) {
    const bool within = s.steps >= window.start && s.steps < window.stop;
    s.steps += s.steps < window.stop;
    if (s.steps <= window.start && !within) return {};
    if (!s.building && (within || (s.costs.empty() && s.in_flight == 0 && s.durations.seen() == 0))) {
      // Measure beyond the window, too, until one run has given costs: without costs there is no schedule.
      s.state = State::kMeasuring;
      ++s.in_flight;
      if (clock_nanos_ == 0) {
        clock_nanos_ = CostOf([] { (void)std::chrono::steady_clock::now(); });
        processor_nanos_ = CostOf([] {
          timespec ts;
          clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        });
      }
      return Issue(shape, {.timed = true, .narrow = s.issued++ % 2 == 0}, false, 0);
    }
    if (s.in_flight != 0 || s.building) return {};  // costs are still to come, or another thread makes the schedule
    Build(plan, s, lock);
  }
  if (s.state == State::kScheduled) return {.plan = s.scheduled};
  if (s.state != State::kComparing) return {};
  const ScheduleGuard::Turn turn = s.guard.Next();
  Step step;
  if (turn.with_new) step.plan = s.scheduled;
  return Issue(shape, std::move(step), true, turn.id);
}

// Makes the schedule outside the lock, because that takes long; other steps go on as before.
void Model::Build(const Plan& plan, Shape& s, std::unique_lock<std::mutex>& lock) {
  s.building = true;
  if (s.costs.empty())
    for (const Samples& samples : s.samples) s.costs.push_back(samples.Tell());
  s.dispatch = std::max(kLeastDispatch, s.dispatches.Tell().nanos);
  Schedule schedule;
  schedule.threads = WidthsOf(s.costs);
  const std::vector<double> cost = CostsOf(s.costs, schedule.threads);
  const double dispatch = s.dispatch;
  Plan scheduled;
  std::string failure;
  lock.unlock();
  try {
    const Contracted units = Contract(dag_, cost, unit_);
    std::vector<uint32_t> kind(units.cost.size());
    for (uint32_t n = 0; n < dag_.size(); ++n)
      kind[units.task_of[n]] = measure_[n] == Measure::kDevice || schedule.threads[n] > 1 ? kAlone : kind_[n];
    const std::vector<uint32_t> batch = Batch(units.dag, units.cost, kind, {dispatch, workers_});
    for (const uint32_t unit : units.task_of) schedule.batch.push_back(batch[unit]);
    for (uint32_t n = 0; n < dag_.size(); ++n)
      if (threads_[n] == 0) schedule.threads[n] = 0;  // they are the pool's, which no schedule changes
    // Workers take batches from the queue, and each batch costs a dispatch: so the ranks are those of batches.
    Contracted tasks = Contract(dag_, cost, schedule.batch);
    for (double& c : tasks.cost) c += dispatch;
    const Critical critical = FindCritical(tasks.dag, tasks.cost);
    for (const uint32_t task : tasks.task_of) schedule.rank.push_back(critical.rank[task]);
    scheduled = plan.With(schedule);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  lock.lock();
  s.building = false;
  s.schedule = std::move(schedule);
  s.scheduled = std::move(scheduled);
  s.state = failure.empty() ? State::kComparing : State::kWentBack;
  if (!failure.empty()) s.said = "runs as compiled, because the schedule could not be made: " + failure;
}

// Called where a run ends, which nothing may hold up: without memory, what the step has shown is lost.
void Model::End(uint64_t number, const Report& report) noexcept {
  try {
    Tell(number, report);
  } catch (const std::bad_alloc&) {
  }
}

void Model::Tell(uint64_t number, const Report& report) {
  std::lock_guard lock(mu_);
  const auto at = open_steps_.find(number);
  if (at == open_steps_.end()) return;
  const OpenStep step = std::move(at->second);
  open_steps_.erase(at);
  Shape& s = *step.shape;
  if (!step.compared) return Measured(s, report, step.narrow);
  if (s.state != State::kComparing) return;
  if (report.outcome == Outcome::kEnded) {
    s.guard.Add(step.turn, std::max<double>(1, static_cast<double>(report.nanos)));
  } else {
    s.guard.Void(report.outcome == Outcome::kFailed);
  }
  if (s.guard.verdict() != ScheduleGuard::Verdict::kOpen) Decided(s);
}

void Model::Measured(Shape& s, const Report& report, bool narrow) {
  --s.in_flight;
  if (report.outcome != Outcome::kEnded) {
    s.failed += report.outcome == Outcome::kFailed;
    return;
  }
  for (uint32_t n = 0; n < report.times.size(); ++n) {
    const NodeTime& t = report.times[n];
    if (t.begin == 0 || t.end == 0) continue;  // skipped
    auto nanos = static_cast<double>(t.end - t.begin) - clock_nanos_;
    if (measure_[n] == Measure::kProcessor && t.busy >= 0)
      nanos = std::min(nanos, static_cast<double>(t.busy) - processor_nanos_);
    if (measure_[n] == Measure::kDevice) {
      if (t.busy < 0) continue;  // the device refused to time it
      nanos = static_cast<double>(t.busy);
    }
    s.samples[narrow || wide_key_of_[n] == kNoKey ? key_of_[n] : wide_key_of_[n]].Add(std::max(1.0, nanos));
  }
  if (const double dispatch = DispatchOf(dag_, report.times, task_of_, clock_nanos_); dispatch > 0)
    s.dispatches.Add(dispatch);
  s.durations.Add(static_cast<double>(report.nanos));
}

void Model::Decided(Shape& s) {
  const bool kept = s.guard.verdict() == ScheduleGuard::Verdict::kKeep;
  s.state = kept ? State::kScheduled : State::kWentBack;
  s.said = kept ? "scheduled by cost" : "went back, and runs as compiled";
  if (s.guard.pairs() == 0) {
    s.said += ": no pair of steps succeeded, so nothing shows that the schedule is better";
  } else {
    s.said += ": with the schedule a step took " + Rounded(s.guard.ratio(), "%.3f") + " of what it took without (" +
              std::to_string(s.guard.pairs()) + " pairs, slower in " + std::to_string(s.guard.slower()) + ")";
  }
  if (!kept) s.scheduled = {};
}

std::vector<double> Model::CostsOf(const std::vector<Estimate>& costs, std::span<const uint8_t> threads) const {
  std::vector<double> cost;
  for (uint32_t n = 0; n < key_of_.size(); ++n)
    cost.push_back(costs[threads[n] > 1 ? wide_key_of_[n] : key_of_[n]].nanos);
  return cost;
}

std::vector<uint8_t> Model::WidthsOf(const std::vector<Estimate>& costs) const {
  const std::vector<uint8_t> one(dag_.size(), 1);
  std::vector<Width> wide(dag_.size());
  for (uint32_t n = 0; n < dag_.size(); ++n)
    if (wide_key_of_[n] != kNoKey) wide[n] = {threads_[n], costs[wide_key_of_[n]].nanos};
  return ChooseWidths(dag_, CostsOf(costs, one), wide, workers_);
}

std::vector<NodeCost> Model::Costs() const {
  std::lock_guard lock(mu_);
  std::vector<NodeCost> out;
  auto loaded = loaded_;  // what is left of it has not run since, and is saved again
  for (const auto& [shape, s] : shapes_) {
    for (size_t k = 0; k < keys_.size(); ++k) {
      const Estimate told = s->costs.empty() ? s->samples[k].Tell() : s->costs[k];
      if (told.samples == 0) continue;
      out.push_back({keys_[k], shape, told.samples, told.nanos, told.spread});
      loaded.erase({shape, keys_[k]});
    }
  }
  for (auto& [at, cost] : loaded) out.push_back(std::move(cost));
  return out;
}

void Model::Save(const std::string& path) const { WriteCosts(path, Costs()); }

void Model::Load(const std::string& path) {
  const std::vector<NodeCost> costs = ReadCosts(path);
  const auto known = [&](const NodeCost& c) { return std::find(keys_.begin(), keys_.end(), c.key) != keys_.end(); };
  if (std::none_of(costs.begin(), costs.end(), known))
    throw UsageError("cost file '" + path + "' is of another plan: none of its " + std::to_string(costs.size()) +
                     " keys is one of this plan's, whose first key is '" + (keys_.empty() ? "" : keys_[0]) + "'");
  std::lock_guard lock(mu_);
  for (const NodeCost& c : costs) loaded_[{c.shape, c.key}] = c;
  shapes_.clear();
}

void Model::Remeasure() {
  std::lock_guard lock(mu_);
  loaded_.clear();
  shapes_.clear();
}

std::string Model::SaidOf(const Shape& s) const {
  if (s.state == State::kComparing) return "comparing steps with and without the schedule";
  const std::string window = std::to_string(window_.start);
  if (s.state == State::kWaiting)
    return std::to_string(s.steps) + " steps; measures from step " + window + " to " + std::to_string(window_.stop);
  if (s.state != State::kMeasuring) return s.said;
  return "measuring: " + std::to_string(s.durations.seen()) + " steps of [" + window + ", " +
         std::to_string(window_.stop) + ")" +
         (s.failed ? "; " + std::to_string(s.failed) + " failed and do not count" : "");
}

Explanation Model::Explain(const Plan& plan, uint64_t shape_class, std::span<const NodeTime> run) const {
  if (!run.empty() && run.size() != key_of_.size())
    throw UsageError("a run of " + std::to_string(run.size()) + " nodes explains no plan of " +
                     std::to_string(key_of_.size()));
  std::lock_guard lock(mu_);
  Explanation out;
  out.workers = workers_;
  out.edges = edges_;
  out.tasks = static_cast<uint32_t>(plan.tasks().size());
  std::vector<double> cost;
  const auto at = shapes_.find(shape_class);
  const Shape* const s = at == shapes_.end() ? nullptr : at->second.get();
  for (const Graph::Node& recorded : plan.graph().nodes()) {
    const auto n = static_cast<uint32_t>(out.nodes.size());
    Explanation::Node& node = out.nodes.emplace_back();
    node.name = recorded.name.c_str();
    const bool scheduled = s && (s->state == State::kScheduled || s->state == State::kComparing);
    if (scheduled) node.threads = std::max<uint32_t>(1, s->schedule.threads[n]);
    const uint32_t key = node.threads > 1 && run.empty() ? wide_key_of_[n] : key_of_[n];
    node.cost = {.key = keys_[key], .shape = shape_class};
    node.device = measure_[n] == Measure::kDevice;
    node.batch = task_of_[n];
    if (!run.empty()) {
      node.cost.samples = run[n].end != 0;
      node.cost.nanos = static_cast<double>(run[n].end - run[n].begin);
    } else if (s) {
      const Estimate told = s->costs.empty() ? s->samples[key].Tell() : s->costs[key];
      node.cost.samples = told.samples;
      node.cost.nanos = told.nanos;
      node.cost.spread = told.spread;
    }
    cost.push_back(node.cost.nanos);
  }
  if (s) {
    out.state = s->state;
    out.said = SaidOf(*s);
    out.dispatch = s->dispatch;
    out.before = s->guard.pairs() ? s->guard.before() : s->durations.Tell().nanos;
    out.after = s->guard.after();
    if (s->state == State::kScheduled || s->state == State::kComparing) {
      const std::vector<uint32_t>& batch = s->schedule.batch;
      for (uint32_t n = 0; n < out.nodes.size(); ++n) out.nodes[n].batch = batch[n];
      out.tasks = batch.empty() ? 0 : 1 + *std::max_element(batch.begin(), batch.end());
    }
  } else {
    out.said = crowded_out_ ? "not used, or one of too many shape classes: a plan schedules " +
                                  std::to_string(kMostShapes) + ", and the others run as compiled"
                            : "no run under cost_model yet";
  }
  int64_t begin = INT64_MAX, end = 0;
  for (const NodeTime& time : run) {
    if (time.end == 0) continue;  // it was skipped
    begin = std::min(begin, time.begin);
    end = std::max(end, time.end);
  }
  if (end != 0) out.run = static_cast<double>(end - begin);
  const Critical critical = FindCritical(dag_, cost);
  if (critical.work == 0) return out;
  out.work = critical.work;
  out.critical = critical.length;
  double here = 0;  // the costs of the nodes that workers run
  for (uint32_t n = 0; n < cost.size(); ++n)
    if (!out.nodes[n].device) here += cost[n];
  out.bound = std::max(here / workers_, critical.length);
  out.path = critical.path;
  for (uint32_t n = 0; n < out.nodes.size(); ++n) {
    out.nodes[n].rank = critical.rank[n];
    out.nodes[n].slack = std::max(0.0, critical.slack[n]);
  }
  for (const uint32_t n : out.path) out.nodes[n].critical = true;
  return out;
}

}  // namespace costmodel
}  // namespace engine
