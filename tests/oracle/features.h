// Features: what a random program may do. Each feature has a name, so that some can be switched off: to shrink a
// failing program, to look at one part alone, and to leave out what is known to be broken.
//
// Threads: pure functions.
// Errors:  std::invalid_argument for a name that is no feature's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace engine::oracle {

enum Feature : uint64_t {
  // What ops do.
  kFail = 1ull << 0,
  kCancel = 1ull << 1,
  kNest = 1ull << 2,
  kWaitInside = 1ull << 3,
  kAsync = 1ull << 4,
  kPlaces = 1ull << 5,
  kParallel = 1ull << 6,
  kWide = 1ull << 7,
  kNullErrors = 1ull << 8,
  // How ops are pushed.
  kPlans = 1ull << 9,
  kBulks = 1ull << 10,
  kHeld = 1ull << 11,
  kHeldOps = 1ull << 12,
  kOperators = 1ull << 13,
  kHeldDeleted = 1ull << 14,
  kHeldWide = 1ull << 15,
  kNestPlainScope = 1ull << 16,
  kPushInPieces = 1ull << 17,
  // What happens at the same time.
  kWaitOutside = 1ull << 18,
  kPolicy = 1ull << 19,
  kRaise = 1ull << 20,
  kDelete = 1ull << 21,
  kClear = 1ull << 22,
  kTrace = 1ull << 23,
  kDescribe = 1ull << 24,
  kStop = 1ull << 25,
  kStopRaces = 1ull << 26,
  kFork = 1ull << 27,
  kForkNames = 1ull << 28,
  kForkHandles = 1ull << 29,
  kForkParallel = 1ull << 30,
  kWaitDeleted = 1ull << 31,
  kTwoEngines = 1ull << 32,
  // How the program ends.
  kShutdownBeside = 1ull << 33,
  kOverlapAtEnd = 1ull << 34,
  kLateCompletion = 1ull << 35,
  kLongTimeouts = 1ull << 36,
  // Other parts of the library.
  kDevices = 1ull << 37,
  kCollectives = 1ull << 38,
  kStages = 1ull << 39,
  kTightDevices = 1ull << 44,
  kTightCollectives = 1ull << 45,
  kManyWithheld = 1ull << 46,
  kLateLanes = 1ull << 47,
  kRunVars = 1ull << 48,
  kForkDevices = 1ull << 49,
  kForkCollectives = 1ull << 50,
  kForkStages = 1ull << 51,
  kForkShutdown = 1ull << 52,
  // What the system refuses.
  kNoMemory = 1ull << 40,
  kNoThreads = 1ull << 41,
  kHooksThrow = 1ull << 42,
  kDeviceNoMemory = 1ull << 53,
  kDeviceNoThreads = 1ull << 54,
  kCollectiveFaults = 1ull << 55,
  // What came later. A seed draws these by themselves, so that the rest of its shape stays what it was.
  kDefer = 1ull << 56,
  kAwait = 1ull << 57,
  kLateContext = 1ull << 58,
  kDestructorsPush = 1ull << 59,
  kRunInputs = 1ull << 60,
  kFewSpares = 1ull << 61,
  kPartnerWorkers = 1ull << 62,
  kRunOutputs = 1ull << 63,
  // How threads are scheduled.
  kNoise = 1ull << 43,
};

struct FeatureInfo {
  Feature bit;
  std::string_view name;
  std::string_view help;
  int finding;  // number of the review's finding, while the feature is broken; 0: it works
};
const std::vector<FeatureInfo>& Features();

uint64_t AllFeatures();
// Those that a seed draws by themselves.
inline constexpr uint64_t kLaterFeatures =
    kDefer | kAwait | kLateContext | kDestructorsPush | kRunInputs | kFewSpares | kPartnerWorkers | kRunOutputs;
// The features that have a finding. They are left out unless somebody asks for them.
uint64_t KnownBroken();

// "fail,plans", "all", "broken" (those with a finding), "all,-fork": each name adds features; with a minus it removes
// them.
uint64_t ParseFeatures(std::string_view text);
std::string FeatureNames(uint64_t features);

}  // namespace engine::oracle
