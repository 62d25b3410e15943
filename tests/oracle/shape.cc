#include "shape.h"

#include <array>
#include <charconv>
#include <stdexcept>

#include "records.h"
#include "support/sanitizers.h"

namespace engine::oracle {
namespace {

struct Number {
  const char* name;
  int64_t Shape::*member;
};
constexpr Number kNumbers[] = {
    {"workers", &Shape::workers},
    {"io_threads", &Shape::io_threads},
    {"pool_threads", &Shape::pool_threads},
    {"spares", &Shape::spares},
    {"pushers", &Shape::pushers},
    {"ops", &Shape::ops},
    {"vars", &Shape::vars},
    {"apart", &Shape::apart},
    {"max_pending", &Shape::max_pending},
    {"spin_us", &Shape::spin_us},
    {"policy", &Shape::policy},
    {"stall_ms", &Shape::stall_ms},
    {"fail_in", &Shape::fail_in},
    {"bulk", &Shape::bulk},
    {"wide", &Shape::wide},
    {"noise", &Shape::noise},
};

template <size_t n>
int64_t OneOf(Random& random, const std::array<int64_t, n>& values) {
  return values[random.Below(n)];
}

}  // namespace

Shape RandomShape(uint64_t seed, uint64_t allowed, int64_t ops) {
  Random random(seed * 1000003);
  Shape s;
  s.workers = OneOf<5>(random, {0, 1, 2, 4, 8});
  s.io_threads = 1 + static_cast<int64_t>(random.Below(2));
  s.pool_threads = 1 + static_cast<int64_t>(random.Below(2));
  s.pushers = random.OneIn(6) ? 1 : 4;
  s.ops = ops;
  s.vars = 3 + static_cast<int64_t>(random.Below(random.OneIn(2) ? 4 : 37));
  s.apart = random.OneIn(2) ? 0 : 1 + static_cast<int64_t>(random.Below(5));
  s.max_pending = random.OneIn(3) ? 1 + static_cast<int64_t>(random.Below(8)) : OneOf<4>(random, {1, 8, 64, 16384});
  s.spin_us = OneOf<4>(random, {20, 20, 0, 200});
  s.policy = random.OneIn(2) ? 0 : static_cast<int64_t>(random.Below(4));
  s.stall_ms = random.OneIn(7) ? 300 : 0;
  s.fail_in = OneOf<4>(random, {200, 200, 30, 8});
  s.bulk = OneOf<2>(random, {20, 200});
  s.wide = OneOf<3>(random, {0, 40, 10});
  s.noise = OneOf<4>(random, {0, 100, 20, 4});
  s.ending = static_cast<Ending>(random.Below(5));
  uint64_t features = 0;
  for (const FeatureInfo& f : Features())
    if (!(f.bit & kLaterFeatures) && !random.OneIn(4)) features |= f.bit;
  // These are slow and disturb each other, so not every program has them.
  if (random.OneIn(2)) features &= ~uint64_t{kFork};
  if (!random.OneIn(3)) features &= ~uint64_t{kDevices | kCollectives};
  if (!random.OneIn(6)) features &= ~uint64_t{kNoMemory | kNoThreads | kHooksThrow};
  if (!random.OneIn(3)) features &= ~uint64_t{kDeviceNoMemory | kDeviceNoThreads | kCollectiveFaults};
  if (features & kDeviceNoThreads && features & kDevices) features |= kNoThreads;
  if (!random.OneIn(4)) features &= ~uint64_t{kStages};
  if (random.OneIn(4)) features &= ~uint64_t{kStop};
  Random later(seed * 15485863);
  for (const FeatureInfo& f : Features())
    if (f.bit & kLaterFeatures && later.OneIn(2)) features |= f.bit;
  if (later.OneIn(2)) features &= ~uint64_t{kFewSpares};
  s.spares = OneOf<4>(later, {0, 1, 2, 4});
  s.features = features & allowed;
  MakeConsistent(s);
  return s;
}

void MakeConsistent(Shape& s) {
  if (test::kSanitized)
    s.features &=
        ~uint64_t{kFork | kNoMemory | kNoThreads | kDeviceNoMemory | kDeviceNoThreads};  // limits of the sanitizers
  if (test::kUnderTsan)
    s.features &= ~uint64_t{kDescribe};  // reads blocks that may be refilled, by design: describe_pending.cc
  if (test::kUnderTsan) s.features &= ~uint64_t{kParallel | kPushInPieces};  // oneTBB is not instrumented
  if (!s.Has(kShutdownBeside) && s.ending == Ending::kShutdownBeside) s.ending = Ending::kShutdown;
  if (s.ending == Ending::kWithheld) {
    s.features &= ~uint64_t{kWaitOutside | kWaitInside | kStages | kTwoEngines};  // these would wait for ever
    s.features &= ~uint64_t{kDevices | kCollectives};  // what a device gets after drain_timeout is lost
  }
  if (s.ending == Ending::kShutdownBeside && !s.Has(kForkShutdown)) s.features &= ~uint64_t{kFork};
  if (s.ending == Ending::kShutdownBeside && !s.Has(kStopRaces)) s.features &= ~uint64_t{kStop};
  if (s.ending == Ending::kShutdownBeside && !s.Has(kLateLanes)) s.features &= ~uint64_t{kCollectives};
  if ((s.Has(kDevices) && !s.Has(kForkDevices)) || (s.Has(kCollectives) && !s.Has(kForkCollectives)) ||
      (s.Has(kStages) && !s.Has(kForkStages)))
    s.features &= ~uint64_t{kFork};
  if (s.Has(kDevices)) s.features &= ~uint64_t{kNoMemory};
  // If a stream has no thread, what is issued to it fails; if a rank has no stream, the collective fails on all ranks.
  if (s.Has(kCollectives)) s.features &= ~uint64_t{kDeviceNoMemory};  // their ops are issued by the same threads
  const bool may_lack_streams = s.Has(kDeviceNoThreads) && !s.Has(kCollectives);
  if ((s.Has(kDevices) || s.Has(kCollectives)) && !may_lack_streams) s.features &= ~uint64_t{kNoThreads};
  if (s.Has(kNoThreads))
    // A wait that is refused leaves its op pending; a stage without a thread throws; oneTBB throws inside the body.
    s.features &= ~uint64_t{kWaitInside | kTwoEngines | kStages | kParallel | kPushInPieces | kForkParallel};
  const bool tight = !(s.Has(kDevices) && !s.Has(kTightDevices)) && !(s.Has(kCollectives) && !s.Has(kTightCollectives));
  // A push that waits for room may run an op, which may wait for a collective that hangs until this very thread aborts it.
  const bool pushes_run_ops = s.workers == 0 || s.policy != 0 || s.Has(kPolicy);
  const bool own_abort = s.Has(kCollectives) && s.Has(kCollectiveFaults) && s.Has(kWaitInside) && pushes_run_ops;
  if (!tight || own_abort) s.max_pending = 16384;
  if (!s.Has(kFewSpares)) s.spares = 512;
  if (!s.Has(kWide)) s.wide = 0;
  if (!s.Has(kNoise)) s.noise = 0;
  if (s.Has(kNoMemory)) {  // a push that runs bodies would make these fail too
    s.workers = std::max<int64_t>(s.workers, 1);
    s.policy = 0;
    s.features &= ~uint64_t{kPolicy};
  }
  s.vars = std::max<int64_t>(s.vars, 1);
}

std::string Describe(const Shape& shape) {
  std::string text;
  for (const Number& n : kNumbers) text += std::string(n.name) + "=" + std::to_string(shape.*n.member) + " ";
  return text + "ending=" + std::to_string(static_cast<int64_t>(shape.ending)) +
         " features=" + FeatureNames(shape.features);
}

void ParseShape(std::string_view text, Shape& shape) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const size_t equals = word.find('=');
    if (word.empty()) continue;
    if (equals == word.npos) throw std::invalid_argument("'" + std::string(word) + "' is not name=number");
    const std::string_view name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "features") {
      shape.features = ParseFeatures(value);
      continue;
    }
    int64_t number = 0;
    if (std::from_chars(value.begin(), value.end(), number).ptr != value.end())
      throw std::invalid_argument("'" + std::string(value) + "' is no number");
    bool found = name == "ending";
    if (found) shape.ending = static_cast<Ending>(number);
    for (const Number& n : kNumbers) {
      if (name != n.name) continue;
      shape.*n.member = number;
      found = true;
    }
    if (!found) throw std::invalid_argument("a shape has no '" + std::string(name) + "'");
  }
}

}  // namespace engine::oracle
