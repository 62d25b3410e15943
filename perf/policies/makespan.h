// makespan: a runner of the suite `policies`. A contender is a Team:
//   Team(const Config&, const Program&)   makes the graph; its node n calls Work(program.cost[n])
//   void Prepare()                        what must happen before a step counts
//   void Step()                           runs the graph once, and waits
//   double Kept()                         optional: 1 if the graph runs as its policy wants
// A case is SHAPE_MICROSECONDS. `over_best` is the median, over the seeds, of the median step divided by the best
// offline schedule of the same costs; `over_bound` is the same, divided by max(T1 / m, T-infinity). Or a case is a recorded
// graph, graphs/NAME.graph; then there is one program, and `over_best` is over the list schedule by critical path. `least` is the
// same of the fastest step, which other programs disturbed the least.
#pragma once

#include <fstream>
#include <memory>

#include "../peers/runner.h"
#include "graph_file.h"
#include "programs.h"

namespace perf {

// Takes as long as it is told, by the clock.
inline void Work(double ns) {
  for (const auto from = Clock::now(); NsBetween(from, Clock::now()) < ns;) {
  }
}

template <class Team>
class Makespan {
 public:
  explicit Makespan(const Config& config) : config_(config) {}

  Answer Run(const std::string& name, std::size_t steps) {
    const std::string file = std::string(PERF_GRAPHS) + "/" + name + ".graph";
    const bool recorded = std::ifstream(file).good();
    std::vector<double> over_best, least, over_bound, step_us, kept;
    for (uint64_t seed = 1; seed <= (recorded ? 1 : kSeeds); ++seed) {
      Open& open = Get(name, recorded ? file : "", seed);
      std::vector<double> took;
      for (std::size_t i = 0; i < steps; ++i) {
        const auto from = Clock::now();
        open.team->Step();
        took.push_back(NsBetween(from, Clock::now()));
      }
      const double median = Quantile(took, 0.5);
      over_best.push_back(median / open.best);
      least.push_back(took.front() / open.best);  // Quantile has sorted them
      over_bound.push_back(median / open.bound);
      step_us.push_back(median / 1000);
      if constexpr (requires { open.team->Kept(); }) kept.push_back(open.team->Kept());
    }
    Answer answer{{{"over_best", Quantile(over_best, 0.5)},
                   {"least", Quantile(least, 0.5)},
                   {"over_bound", Quantile(over_bound, 0.5)},
                   {"step_us", Quantile(step_us, 0.5)}},
                  {}};
    double sum = 0;
    for (const double k : kept) sum += k;
    if (!kept.empty()) answer.figures.emplace_back("kept", sum / static_cast<double>(kept.size()));
    return answer;
  }

 private:
  static constexpr uint64_t kSeeds = 3;
  struct Open {
    Program program;
    double best = 0, bound = 0;
    std::unique_ptr<Team> team;
  };
  Open& Get(const std::string& name, const std::string& file, uint64_t seed) {
    Open& open = open_[name + '#' + std::to_string(seed)];
    if (open.team) return open;
    if (file.empty()) {
      const auto cut = name.rfind('_');
      open.program = MakeProgram(name.substr(0, cut), seed, 1000 * std::atof(name.c_str() + cut + 1));
    } else {
      open.program = FromRecorded(ReadGraph(file));
    }
    const engine::costmodel::Critical critical =
        engine::costmodel::FindCritical(open.program.ToDag(), open.program.cost);
    open.best = file.empty() ? BestOffline(open.program, config_.workers)
                             : engine::costmodel::Simulate(open.program.ToDag(), open.program.cost, critical.rank,
                                                           config_.workers)
                                   .makespan;
    open.bound = critical.Bound(config_.workers);
    open.team = std::make_unique<Team>(config_, open.program);
    open.team->Prepare();
    return open;
  }
  const Config config_;
  std::map<std::string, Open> open_;
};

template <class Team>
int MakespanMain(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  FILE* answers = TakeStdout();
  Makespan<Team> makespan(ParseArgs(argc, argv));
  std::string name;
  for (std::size_t n = 0; std::cin >> name >> n;) {
    std::fprintf(answers, "%s\n", ToJson(makespan.Run(name, n)).c_str());
    std::fflush(answers);
  }
  return 0;
}

}  // namespace perf
