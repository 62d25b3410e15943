// SmartStage: Next, in whichever way steps run at the moment.
#include "engine/smart_stage.h"

#include "backoff.h"
#include "base/sync.h"
#include "engine/engine.h"
#include "engine/spi/stage_host.h"
#include "pool.h"
#include "smart_pipeline.h"
#include "turns.h"

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
  State(Engine& engine, StepPull pull, SmartStageOptions given)
      : eng(engine),
        options(Checked(std::move(given), engine)),
        reader(std::make_shared<detail::StepReader>(std::move(pull), options.stage.ignored_exception_types)),
        backoff(options.stage.ignored_budget) {
    if (options.stage.take_timeout.count() > 0) asked = std::make_unique<detail::AskedReader>(options.stage, reader);
  }
  static SmartStageOptions Checked(SmartStageOptions given, Engine& engine) {
    if (given.stage.stage_subgraph_stream_id != 0 && !given.stage.engine) given.stage.engine = &engine;
    // Asked now, also if the step is recorded later.
    if (!given.do_smart_stage) given.do_smart_stage = engine.policy_choice().options.smart_stage;
    given.stage = StagingArea(std::move(given.stage)).options();  // the area checks the options, and generates a name
    return given;
  }

  Engine& eng;
  SmartStageOptions options;
  const std::shared_ptr<detail::StepReader> reader;
  std::unique_ptr<detail::AskedReader> asked;
  // How many threads are inside of Next or Record, and above 32 bits the fork generation that they are of. relaxed: it is
  // only compared.
  std::atomic<uint64_t> clients{0};
  detail::Turns turns;                                // one Next at a time, so that steps start in order
  std::shared_ptr<SmartStep> step GUARDED_BY(turns);  // null: not recorded yet
  std::optional<StepItem> held GUARDED_BY(turns);     // an item whose step was refused; the next step gets it
  bool held_is_staged GUARDED_BY(turns) = false;
  SmartStep::Ran held_ran GUARDED_BY(turns) = SmartStep::Ran::kWhole;
  uint64_t reported GUARDED_BY(turns) = 0;       // changes() of the step that the report has
  std::exception_ptr failure GUARDED_BY(turns);  // what a source threw
  bool ended GUARDED_BY(turns) = false;
  std::vector<detail::SmartPipeline::Size> sizes GUARDED_BY(turns);
  bool closing GUARDED_BY(turns) = false;  // the pipeline delivers the items that it has begun, and then goes
  detail::Backoff backoff GUARDED_BY(turns);

  mutable detail::Mutex mu;  // taken under turns or alone; nothing is waited for under it
  std::shared_ptr<detail::SmartPipeline> pipeline GUARDED_BY(mu);
  bool cancelled GUARDED_BY(mu) = false;
  std::condition_variable cancelling;
  SmartStageStats stats GUARDED_BY(mu);
  SmartStageReport report GUARDED_BY(mu);

  const std::string& name() const { return options.stage.name; }
  StageHost* host() const { return options.stage.host.get(); }
  [[noreturn]] void ThrowCancelled() const { throw CancelledError("smart stage '" + name() + "': it was cancelled"); }

  // Counts a call, and refuses more than num_clients; also those of a fork's child if one of the parent's was inside, which has
  // left the state as it was in the middle of that call.
  class Client {
   public:
    explicit Client(State& s) : s_(s) {
      const uint64_t generation = detail::ForkGeneration();
      const auto most = static_cast<uint32_t>(s.options.stage.num_clients);
      uint64_t was = s.clients.load(std::memory_order_relaxed);
      uint32_t inside;
      do {
        inside = static_cast<uint32_t>(was);
        if (inside > 0 && was >> 32 != generation)
          throw ForkedWhilePending("smart stage '" + s.name() +
                                   "': a thread was asking it for a step when the process forked, " +
                                   "and stayed in the parent; make another smart stage here");
        if (inside >= most)
          throw UsageError("smart stage '" + s.name() + "': more than num_clients (" + std::to_string(most) +
                           ") threads ask for steps at once; raise num_clients");
      } while (!s.clients.compare_exchange_weak(was, generation << 32 | (inside + 1), std::memory_order_relaxed));
    }
    ~Client() { s_.clients.fetch_sub(1, std::memory_order_relaxed); }
    Client(const Client&) = delete;

   private:
    State& s_;
  };

  // Lets one call in at a time.
  class SCOPED_CAPABILITY Turn {
   public:
    explicit Turn(State& s) ACQUIRE(s.turns) NO_THREAD_SAFETY_ANALYSIS : client_(s), turns_(s.turns) {
      if (!turns_.Enter(s.host())) s.ThrowCancelled();
    }
    ~Turn() RELEASE() NO_THREAD_SAFETY_ANALYSIS { turns_.Leave(); }
    Turn(const Turn&) = delete;

   private:
    Client client_;
    detail::Turns& turns_;
  };

  // Ends all that holds values of the program, while this state is whole: their destructors may ask for the counters, also those of
  // the items that a producer drops meanwhile. For the destructor, which no call runs beside; so without turns, which in a fork's
  // child a thread of the parent may have.
  void Empty() NO_THREAD_SAFETY_ANALYSIS {
    std::shared_ptr<detail::SmartPipeline> last;
    {
      detail::MutexLock lock(mu);
      last.swap(pipeline);
    }
    last.reset();
    held.reset();
    step.reset();
  }

  // The pipeline, or null; throws if the stage was cancelled. Only Next uses it, and only Next makes and ends
  // pipelines.
  detail::SmartPipeline* Pipeline() {
    detail::MutexLock lock(mu);
    if (cancelled) ThrowCancelled();
    return pipeline.get();
  }
  void Replace(std::shared_ptr<detail::SmartPipeline> next) {
    // Destroyed after the lock is dropped, because that may join threads.
    std::shared_ptr<detail::SmartPipeline> gone = std::move(next);
    detail::MutexLock lock(mu);
    if (pipeline) stats.skipped += pipeline->skipped();
    pipeline.swap(gone);
    stats.on = pipeline != nullptr;
  }
  // Whether the data has ended. Throws if the stage was cancelled, or a source has failed.
  bool IsOver() REQUIRES(turns) {
    Pipeline();  // throws if cancelled
    if (failure) std::rethrow_exception(failure);
    return ended;
  }

  void Made(Graph graph, std::vector<ValueId> sourced) REQUIRES(turns) {
    step = std::make_shared<SmartStep>(eng, std::move(graph), std::move(sourced), options);
    auto fresh = step->Report();
    detail::MutexLock lock(mu);
    report = std::move(fresh);
  }

  // Reads one item on the calling thread; nothing at the end of the data.
  std::optional<StepItem> Read() REQUIRES(turns) {
    const StageOptions& stage = options.stage;
    for (;; Pipeline()) {  // Pipeline throws if cancelled
      try {
        StepItem item;
        if (!(asked ? asked->Read(&item) : reader->Read(&item))) return {};
        if (step && step->mode(false) == Mode::kHalves)
          for (size_t k = 0; k < step->levels(); ++k) RunLevel(k, item);
        backoff.Finished();
        return item;
      } catch (const StageTimeoutError&) {
        throw;  // the wait was given up; the source has not failed
      } catch (const WaitGivenUp&) {
        throw;
      } catch (...) {
        std::exception_ptr thrown = std::current_exception();
        Pipeline();  // throws if cancelled
        std::optional<std::chrono::milliseconds> pause;
        try {
          if (stage.closed_exception_types(thrown)) return {};
          if (stage.ignored_exception_types(thrown)) pause = backoff.Ignored();
        } catch (...) {  // a filter
          thrown = std::current_exception();
        }
        if (!pause) {
          failure = thrown;
          std::rethrow_exception(thrown);
        }
        Pause(*pause);
      }
    }
  }
  void RunLevel(size_t level, StepItem& item) REQUIRES(turns) {
    StageHost::Blocking(host(), [&]() NO_THREAD_SAFETY_ANALYSIS { step->RunLevel(level, item); });
  }
  void Pause(std::chrono::milliseconds pause) {
    StageClock& clock = *options.stage.clock;
    const auto until = clock.Now() + pause;
    const auto attempt = [&](StageHost::Time most) {
      const auto end = std::min(most, until);
      detail::MutexLock lock(mu);
      while (!cancelled && clock.Now() < end)
        mu.WithNative([&](auto& held_lock) { clock.WaitUntil(cancelling, held_lock, end); });
      return cancelled || clock.Now() >= until;
    };
    {
      detail::MutexLock lock(mu);
      ++stats.skipped;
    }
    if (pause.count() > 0) StageHost::AwaitOn(host(), attempt);
  }

  // The next item; which way its step runs; whether only the rest of it is to run; and how long it took to read or to take
  // the item.
  std::optional<StepItem> NextItem(SmartStep::Ran* ran, bool* staged, double* seconds) REQUIRES(turns) {
    for (;;) {
      detail::SmartPipeline* open = Pipeline();
      // If a call asked for an item and its wait timed out, the next call gets that item. No stage may read from the
      // source before it has come.
      const bool on = step->mode() == Mode::kStaged && !(asked && asked->pending());
      if (!on && !open) {
        *ran = SmartStep::Ran::kWhole;
        *staged = step->mode(false) == Mode::kHalves;
        const auto begin = Clock::now();
        auto item = Read();
        *seconds = Seconds(Clock::now() - begin);
        return item;
      }
      if (!open) {
        Replace(std::make_shared<detail::SmartPipeline>(step, reader, sizes));
        continue;
      }
      if (!on && !closing) {
        open->Close();
        closing = true;
      }
      const auto begin = Clock::now();
      if (auto item = open->Take()) {
        *seconds = Seconds(Clock::now() - begin);
        *ran = closing ? SmartStep::Ran::kDrained : SmartStep::Ran::kStaged;
        *staged = true;
        return item;
      }
      if (!closing || open->data_ended()) return {};
      closing = false;
      sizes = open->Sizes(std::move(sizes));
      Replace(nullptr);
    }
  }

  // Starts the step of `held`. A host keeps its own lock if the start neither waits nor runs nodes.
  Run Start(std::span<Value> given, const RunOptions& run_options, Site site) REQUIRES(turns) {
    Run run;
    const auto start = [&](bool may_wait) NO_THREAD_SAFETY_ANALYSIS {
      run = held_is_staged ? step->StartRest(*held, given, run_options, site, may_wait)
                           : step->StartWhole(*held, given, run_options, site, may_wait);
    };
    const bool runs_nothing =
        UsesWorkers(run_options.policy.value_or(eng.policy())) || (held_is_staged && step->rest_is_empty());
    if (host() && runs_nothing && !held->error) start(false);
    if (!run) StageHost::Blocking(host(), [&] { start(true); });
    return run;
  }

  Run Next(std::span<Value> given, const RunOptions& run_options, Site site) REQUIRES(turns) {
    if (IsOver()) return {};
    if (!step) throw UsageError("smart stage '" + name() + "': its step has not been recorded; call Record first");
    detail::SmartPipeline* const open = Pipeline();
    step->Asked(open ? open->begun() : 0);
    double seconds = 0;
    if (!held) held = NextItem(&held_ran, &held_is_staged, &seconds);
    if (!held) {
      ended = true;
      return {};
    }
    const uint64_t number = held->number;
    const bool profile = !held_is_staged && step->mode() == Mode::kProfile;
    Run run;
    if (profile) {
      StageHost::Blocking(
          host(), [&]() NO_THREAD_SAFETY_ANALYSIS { run = step->Profile(*held, given, run_options, seconds, site); });
    } else {
      run = Start(given, run_options, site);
    }
    held.reset();
    if (step->comparing()) {
      if (!profile)
        StageHost::Blocking(host(), [&]() NO_THREAD_SAFETY_ANALYSIS { step->Started(run, held_ran, seconds); });
    } else {
      step->Started(run, held_ran, seconds);
    }
    std::optional<SmartStageReport> fresh;
    if (const uint64_t changes = step->changes(); changes != reported) {
      try {
        fresh = step->Report();
        reported = changes;
      } catch (const std::bad_alloc&) {  // the step runs and is the caller's; the next call reports
      }
    }
    detail::MutexLock lock(mu);
    ++stats.steps;
    stats.position = number + 1;
    if (fresh) report = std::move(*fresh);
    return run;
  }
};

SmartStage::SmartStage(Engine& eng, Graph step, std::vector<SmartSource> sources, SmartStageOptions options) {
  std::vector<ValueId> inputs = InputsOf(sources);
  state_ = std::make_unique<State>(eng, detail::PullOf(std::move(sources)), std::move(options));
  const State::Turn turn(*state_);
  state_->Made(std::move(step), std::move(inputs));
}

SmartStage::SmartStage(Engine& eng, StepPull pull, SmartStageOptions options)
    : state_(std::make_unique<State>(eng, std::move(pull), std::move(options))) {}

SmartStage::~SmartStage() {
  Cancel();
  state_->Empty();
}

bool SmartStage::Record(const std::function<RecordedStep()>& record) {
  State& s = *state_;
  const State::Turn turn(s);
  if (s.IsOver()) return false;
  if (s.step) return true;
  if (!s.reader->keeps()) {
    auto item = s.Read();
    s.ended = !item;
    if (s.ended) return false;
    s.reader->Keep(std::move(*item));
  }
  RecordedStep made = record();
  s.options.targets = std::move(made.targets);
  s.Made(std::move(made.graph), std::move(made.sourced));
  return true;
}

Run SmartStage::Next(std::span<Value> given, const RunOptions& options, Site site) {
  const State::Turn turn(*state_);
  return state_->Next(given, options, site);
}

void SmartStage::Cancel() {
  State& s = *state_;
  std::shared_ptr<detail::SmartPipeline> pipeline;
  {
    detail::MutexLock lock(s.mu);
    s.cancelled = true;
    s.cancelling.notify_all();
    pipeline = s.pipeline;
  }
  s.turns.Cancel();
  // Without the lock: items are dropped, whose destructors may ask this stage for its counters.
  if (pipeline) pipeline->Cancel();
  if (s.asked) s.asked->Cancel();
}

const std::string& SmartStage::name() const { return state_->name(); }

SmartStageStats SmartStage::stats() const {
  State& s = *state_;
  detail::MutexLock lock(s.mu);
  SmartStageStats out = s.stats;
  out.read = s.reader->read();
  if (s.pipeline) {
    out.stage = s.pipeline->stats();
    out.skipped += s.pipeline->skipped();
  }
  return out;
}

SmartStageReport SmartStage::Report() const {
  detail::MutexLock lock(state_->mu);
  return state_->report;
}

}  // namespace engine
