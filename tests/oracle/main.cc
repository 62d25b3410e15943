// oracle: random concurrent programs, checked afterwards against what docs/concepts.md promises. See README.md.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "shrink.h"
#include "supervisor.h"
#include "support/sanitizers.h"

namespace engine::oracle {
namespace {

constexpr char kUsage[] =
    "oracle [--seed N] [--count N | --seconds S] [--ops N] [--hang S] [--only FEATURES] [--mask FEATURES] [--shape "
    "'NAME=N ...']\n"
    "       [--shrink [--tries N]] [--record FILE] [--replay FILE] [--most-bad N] [--verbose] [--features]\n"
    "Programs from seed N on. FEATURES: names with commas; all, broken (those known to be), none; -name takes away.\n"
    "--only leaves these, --mask takes them away (broken, unless said otherwise). --shape changes what the seed has "
    "drawn.\n"
    "--hang: a program hangs if nothing has moved for so many seconds.\n"
    "--record appends the programs that fail, --replay runs those of a file, --shrink looks for smaller ones that "
    "fail.\n";

struct Options {
  uint64_t seed = 1, count = 0, most_bad = 20;
  double seconds = 0;
  int64_t ops = test::kUnderTsan ? 250 : test::kUnderAsan ? 400 : 900;
  int tries = 6;
  uint64_t only = AllFeatures(), mask = KnownBroken();
  std::string shape, record, replay;
  bool shrink = false, verbose = false, features = false;
};

Options Parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw std::invalid_argument(name + " wants a value");
      return argv[++i];
    };
    if (name == "--seed")
      o.seed = std::stoull(value());
    else if (name == "--count")
      o.count = std::stoull(value());
    else if (name == "--seconds")
      o.seconds = std::stod(value());
    else if (name == "--most-bad")
      o.most_bad = std::stoull(value());
    else if (name == "--ops")
      o.ops = std::stoll(value());
    else if (name == "--hang")
      hang_limit = std::stoi(value());
    else if (name == "--tries")
      o.tries = std::stoi(value());
    else if (name == "--only")
      o.only = ParseFeatures(value());
    else if (name == "--mask")
      o.mask = ParseFeatures(value());
    else if (name == "--shape")
      o.shape = value();
    else if (name == "--record")
      o.record = value();
    else if (name == "--replay")
      o.replay = value();
    else if (name == "--shrink")
      o.shrink = true;
    else if (name == "--verbose")
      o.verbose = true;
    else if (name == "--features")
      o.features = true;
    else
      throw std::invalid_argument("what is " + name + "?");
  }
  return o;
}

Supervisor::Source SourceOf(const Options& o) {
  if (!o.replay.empty()) {
    std::vector<Program> programs;
    std::ifstream file(o.replay);
    if (!file) throw std::invalid_argument("cannot read " + o.replay);
    for (std::string line; std::getline(file, line);)
      if (!line.empty()) programs.push_back(ParseProgram(line));
    const uint64_t rounds = std::max<uint64_t>(o.count, 1);
    return [=](uint64_t number) -> std::optional<Program> {
      if (number >= programs.size() * rounds) return {};
      return programs[number % programs.size()];
    };
  }
  const uint64_t count = o.count ? o.count : o.seconds > 0 ? UINT64_MAX : 10;
  return [=](uint64_t number) -> std::optional<Program> {
    if (number >= count) return {};
    Program program{o.seed + number, RandomShape(o.seed + number, o.only & ~o.mask, o.ops)};
    ParseShape(o.shape, program.shape);
    MakeConsistent(program.shape);
    return program;
  };
}

int Main(const Options& o) {
  if (o.features) {
    for (const FeatureInfo& f : Features()) {
      printf("%-18s %.*s", std::string(f.name).c_str(), static_cast<int>(f.help.size()), f.help.data());
      printf(f.finding ? " (broken: finding %d)\n" : "\n", f.finding);
    }
    return 0;
  }
  const auto begin = Clock::now();
  const auto until = o.seconds > 0
                         ? begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(o.seconds))
                         : Clock::time_point::max();
  std::vector<Program> failed;
  Supervisor supervisor(
      SourceOf(o),
      [&](const Program& program) {
        failed.push_back(program);
        if (!o.record.empty()) std::ofstream(o.record, std::ios::app) << Describe(program) << "\n";
      },
      o.verbose);
  const Verdicts v = supervisor.Run(until, o.shrink ? 1 : o.most_bad);
  if (o.shrink && !failed.empty()) {
    constexpr double kSeconds = 600;
    const Program least = Shrink(failed.front(), o.tries, o.seconds > 0 ? o.seconds : kSeconds);
    printf("smallest: oracle --seed %" PRIu64 " --mask none --count 1 --shape '%s'\n", least.seed,
           Describe(least.shape).c_str());
  }
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  printf("oracle: %" PRIu64 " seeds from %" PRIu64 ": %" PRIu64 " ops, %" PRIu64 " skipped, %" PRIu64
         " failed, %" PRIu64 " waits, %" PRIu64 " forks; %" PRIu64 " bad in %.1f s\n",
         v.totals.seeds, o.seed, v.totals.ops, v.totals.skipped, v.totals.failed, v.totals.waits, v.totals.forks, v.bad,
         took);
  return v.bad ? 1 : 0;
}

}  // namespace
}  // namespace engine::oracle

int main(int argc, char** argv) {
  try {
    return engine::oracle::Main(engine::oracle::Parse(argc, argv));
  } catch (const std::invalid_argument& error) {
    fprintf(stderr, "%s\n%s", error.what(), engine::oracle::kUsage);
    return 2;
  }
}
