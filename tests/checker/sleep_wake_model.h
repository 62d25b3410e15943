// SleepWakeModel: how the workers of a pool go to sleep and are woken, as in src/engine/sched/pool.cc.
//
//   poster   publishes an op; light fence; if somebody sleeps: full fence, and if nobody searches, wakes one
//   worker   finds nothing: searching; finds nothing again: announces its sleep, no longer searching, heavy fence,
//            looks once more, sleeps. A woken worker counts as searching from the moment it is chosen. The last
//            searcher that finds something passes the search on: if somebody sleeps, looks for more, wakes one
//
// The end of a run is a state in which nobody can move: then every op must have been taken, and the counts be right.
#pragma once

#include <array>

#include "store_buffer.h"

namespace checker {

enum class SleepFault {
  kNone,
  kNoSecondLook,         // sleeps without looking once more after the announcement: a dropped wake
  kNoHeavyFence,         // looks once more without emptying the posters' store buffers
  kSearcherUntilAsleep,  // stops counting as a searcher only after the second look
  kNobodyPassesOn,       // the last searcher leaves more behind and wakes nobody
  kReliesUnfenced,       // a poster relies on a searcher that may not see its op yet
  kWokenOutsideLock,     // a woken worker's flag is cleared after the lock that chose it was released
};

struct SleepScenario {
  int posters = 1;
  int posts = 1;  // of each poster
  int workers = 2;
  bool ops_meet = false;  // an op ends only when all ops run: there must be a worker for each
  SleepFault fault = SleepFault::kNone;
};

class SleepWakeModel final : public Program {
 public:
  static constexpr int kMaxPosters = 2;
  static constexpr int kMaxWorkers = 3;

  explicit SleepWakeModel(const SleepScenario& scenario) : scenario_(scenario) {}

  std::span<std::byte> memory() override { return std::as_writable_bytes(std::span(&s_, 1)); }
  void Begin() override;
  const char* AtRest() override;
  std::string NameOf(const Event& event) const override { return event.remark; }

 private:
  struct alignas(8) State {
    std::array<StoreBuffer, kMaxPosters> posted;
    uint8_t taken;
    uint8_t all_taken;
    uint8_t sleepers;
    uint8_t searchers;
    uint8_t locked;
    uint8_t in_list;  // length of the list
    std::array<uint8_t, kMaxWorkers + 1> list;
    std::array<uint8_t, kMaxWorkers> asleep;
  };

  bool Has(SleepFault fault) const { return scenario_.fault == fault; }
  static void Step(const char* what);
  bool Look(bool (SleepWakeModel::*condition)() const, const char* yes, const char* no);
  void Count(uint8_t& counter, int change);
  void Lock();
  void Unlock();
  void HeavyFence();
  bool HasReady() const;
  bool HasSleepers() const { return s_.sleepers != 0; }
  bool HasSearchers() const { return s_.searchers != 0; }
  bool Take();

  void PosterMain(int poster);
  void WorkerMain(int worker);
  static constexpr int kNoPoster = -1;
  void Notify(int poster);
  void WakeOne(int poster);
  void Search(int worker);
  void Sleep(int worker);
  void Run();

  const SleepScenario scenario_;
  State s_{};
};

}  // namespace checker
