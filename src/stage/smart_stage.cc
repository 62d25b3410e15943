// SmartStage: Next, whichever way steps are run at the moment.
#include "engine/smart_stage.h"

#include "backoff.h"
#include "smart_pipeline.h"
#include "sync.h"

namespace engine {

using Clock = std::chrono::steady_clock;
using Mode = SmartStep::Mode;

SmartSource PlanSource(std::string name, std::vector<ValueId> inputs, Plan plan) {
  if (!plan || plan.graph().outputs().size() != inputs.size() || !plan.graph().inputs().empty())
    throw UsageError("PlanSource '" + name + "': a plan without inputs and with " + std::to_string(inputs.size()) +
                     " outputs is expected, one for each input of the step that it gives");
  return {std::move(name), std::move(inputs), [plan = std::move(plan)](std::span<Value> out) {
            Run run = plan.Start({}, {.policy = Policy::kInline, .priority = {}});
            try {
              run.Wait();
            } catch (const OpError& error) {
              error.RethrowCause();
            }
            for (size_t i = 0; i < out.size(); ++i) out[i] = std::move(run.Output(i));
            return true;
          }};
}

namespace {

std::vector<ValueId> InputsOf(const std::vector<SmartSource>& sources) {
  std::vector<ValueId> inputs;
  for (const SmartSource& source : sources) inputs.insert(inputs.end(), source.inputs.begin(), source.inputs.end());
  return inputs;
}

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

struct SmartStage::State {
  State(Engine& eng, Graph graph, std::vector<SmartSource> sources, SmartStageOptions options)
      : step(eng, std::move(graph), InputsOf(sources), std::move(options)),
        reader(std::move(sources), step.options().stage.ignored_exception_types),
        backoff(step.options().stage.ignored_budget) {
    const StageOptions& stage = step.options().stage;
    if (stage.take_timeout_millis.count() > 0) asked = std::make_unique<detail::AskedReader>(stage, reader);
  }

  SmartStep step;  // guarded by next_mu
  detail::StepReader reader;
  std::unique_ptr<detail::AskedReader> asked;
  // relaxed: a count, compared only.
  std::atomic<int> clients{0};

  detail::StageMutex next_mu;                                   // one Next at a time, so that steps start in order
  std::optional<StepItem> held STAGE_TSA(guarded_by(next_mu));  // its step was refused: it is the next
  bool held_is_staged STAGE_TSA(guarded_by(next_mu)) = false;
  bool held_as_planned STAGE_TSA(guarded_by(next_mu)) = false;
  bool settled STAGE_TSA(guarded_by(next_mu)) = false;        // the report does not change any more
  std::exception_ptr failure STAGE_TSA(guarded_by(next_mu));  // what a source threw
  bool ended STAGE_TSA(guarded_by(next_mu)) = false;
  bool closing STAGE_TSA(guarded_by(next_mu)) = false;  // the pipeline delivers what it has begun, then goes
  detail::Backoff backoff STAGE_TSA(guarded_by(next_mu));

  mutable detail::StageMutex mu;  // taken under next_mu, or alone
  std::unique_ptr<detail::SmartPipeline> pipeline STAGE_TSA(guarded_by(mu));
  bool cancelled STAGE_TSA(guarded_by(mu)) = false;
  std::condition_variable cancelling;
  SmartStageStats stats STAGE_TSA(guarded_by(mu));
  SmartStageReport report STAGE_TSA(guarded_by(mu));

  const std::string& name() const { return step.options().stage.name; }

  // Of Next only, which alone makes and ends pipelines.
  detail::SmartPipeline* Pipeline() {
    detail::StageLock lock(mu);
    if (cancelled) throw CancelledError("smart stage '" + name() + "': it was cancelled");
    return pipeline.get();
  }
  void Replace(std::unique_ptr<detail::SmartPipeline> next) {
    std::unique_ptr<detail::SmartPipeline> gone = std::move(next);  // destroyed after the lock: that joins threads
    detail::StageLock lock(mu);
    if (pipeline) stats.skipped += pipeline->skipped();
    pipeline.swap(gone);
  }

  // Reads on the calling thread. None: the data has ended.
  std::optional<StepItem> Read() STAGE_TSA(requires_capability(next_mu)) {
    const StageOptions& stage = step.options().stage;
    for (;; Pipeline()) {  // cancelled?
      try {
        StepItem item;
        if (!(asked ? asked->Read(&item) : reader.Read(&item))) return {};
        if (step.mode() == Mode::kHalves)
          for (size_t k = 0; k < step.levels(); ++k) step.RunLevel(k, item);
        backoff.Finished();
        return item;
      } catch (const StageTimeoutError&) {
        throw;  // the wait was given up, not the source
      } catch (...) {
        const std::exception_ptr thrown = std::current_exception();
        Pipeline();  // cancelled?
        if (stage.closed_exception_types(thrown)) return {};
        std::optional<std::chrono::milliseconds> pause;
        if (stage.ignored_exception_types(thrown)) pause = backoff.Ignored();
        if (!pause) {
          failure = thrown;
          throw;
        }
        detail::StageLock lock(mu);
        ++stats.skipped;
        const auto until = stage.clock->Now() + *pause;
        while (!cancelled && stage.clock->Now() < until) stage.clock->WaitUntil(cancelling, lock.native(), until);
      }
    }
  }

  // The next item, and whether its step is run as mode() says and so may be measured.
  std::optional<StepItem> NextItem(bool* as_planned, bool* staged, double* seconds)
      STAGE_TSA(requires_capability(next_mu)) {
    for (;;) {
      detail::SmartPipeline* open = Pipeline();
      const bool on = step.mode() == Mode::kStaged;
      if (!on && !open) {
        *as_planned = true;
        *staged = step.mode() == Mode::kHalves;
        const auto begin = Clock::now();
        auto item = Read();
        *seconds = Seconds(Clock::now() - begin);
        return item;
      }
      if (!open) {
        Replace(std::make_unique<detail::SmartPipeline>(step, reader));
        continue;
      }
      if (!on && !closing) {
        open->Close();
        closing = true;
      }
      if (auto item = open->Take()) {
        *as_planned = !closing;
        *staged = true;
        return item;
      }
      if (!closing || open->data_ended()) return {};
      closing = false;
      Replace(nullptr);
    }
  }

  Run Next(std::span<Value> given, const RunOptions& options, Site site) STAGE_TSA(requires_capability(next_mu)) {
    Pipeline();  // cancelled?
    if (failure) std::rethrow_exception(failure);
    if (ended) return {};
    step.Asked();
    double seconds = 0;
    if (!held) held = NextItem(&held_as_planned, &held_is_staged, &seconds);
    if (!held) {
      ended = true;
      return {};
    }
    const uint64_t number = held->number;
    const bool profile = step.mode() == Mode::kProfile;
    Run run = held_is_staged ? step.StartRest(*held, given, options, site)
              : profile      ? step.Profile(*held, given, options, seconds, site)
                             : step.StartWhole(*held, given, options, site);
    held.reset();
    if (held_as_planned && !profile) step.Started(run);
    std::optional<SmartStageReport> fresh;
    if (!settled) fresh = step.Report();
    detail::StageLock lock(mu);
    ++stats.steps;
    stats.position = number + 1;
    if (fresh) {
      settled = fresh->decided;
      report = std::move(*fresh);
    }
    return run;
  }
};

SmartStage::SmartStage(Engine& eng, Graph step, std::vector<SmartSource> sources, SmartStageOptions options)
    : state_(std::make_unique<State>(eng, std::move(step), std::move(sources), std::move(options))) {
  detail::StageLock lock(state_->mu);
  state_->report = state_->step.Report();
}

SmartStage::~SmartStage() { Cancel(); }

Run SmartStage::Next(std::span<Value> given, const RunOptions& options, Site site) {
  State& s = *state_;
  struct Client {
    std::atomic<int>& count;
    const int before;
    explicit Client(std::atomic<int>& of) : count(of), before(count.fetch_add(1, std::memory_order_relaxed)) {}
    ~Client() { count.fetch_sub(1, std::memory_order_relaxed); }
  } const client(s.clients);
  if (client.before >= s.step.options().stage.num_clients)
    throw UsageError("smart stage '" + s.name() + "': more than num_clients (" +
                     std::to_string(s.step.options().stage.num_clients) + ") threads ask for steps at once");
  detail::StageLock lock(s.next_mu);
  return s.Next(given, options, site);
}

void SmartStage::Cancel() {
  State& s = *state_;
  detail::StageLock lock(s.mu);
  s.cancelled = true;
  s.cancelling.notify_all();
  if (s.pipeline) s.pipeline->Cancel();
  if (s.asked) s.asked->Cancel();
}

SmartStageStats SmartStage::stats() const {
  State& s = *state_;
  detail::StageLock lock(s.mu);
  SmartStageStats out = s.stats;
  out.read = s.reader.read();
  if (s.pipeline) {
    out.stage = s.pipeline->stats();
    out.skipped += s.pipeline->skipped();
  }
  return out;
}

SmartStageReport SmartStage::Report() const {
  detail::StageLock lock(state_->mu);
  return state_->report;
}

}  // namespace engine
