#include "sleep_wake_model.h"

#include <algorithm>

namespace checker {

void SleepWakeModel::Begin() {
  Explorer& explorer = Explorer::current();
  for (int p = 0; p < scenario_.posters; ++p) {
    const std::string name = "poster" + std::to_string(p);
    explorer.Start(explorer.AddThread(name, [this, p] { PosterMain(p); }));
    explorer.Start(explorer.AddThread(name + "'s buffer", [this, p] { s_.posted[p].Drain(); }));
  }
  for (int w = 0; w < scenario_.workers; ++w)
    explorer.Start(explorer.AddThread("worker" + std::to_string(w), [this, w] { WorkerMain(w); }));
}

const char* SleepWakeModel::AtRest() {
  if (HasReady()) return "a wake was lost: an op is ready and nobody comes for it";
  if (s_.taken != scenario_.posters * scenario_.posts) return "a post never returned";
  if (s_.searchers != 0) return "nobody searches, and yet somebody is counted";
  if (s_.sleepers != scenario_.workers || s_.in_list != scenario_.workers) return "a sleeper is not counted";
  return nullptr;
}

// One step of a thread: what follows, up to the next one, happens at once.
void SleepWakeModel::Step(const char* what) {
  Explorer::current().Point();
  Explorer::current().Remark(what);
}

bool SleepWakeModel::Look(bool (SleepWakeModel::*condition)() const, const char* yes, const char* no) {
  Explorer::current().Point();
  const bool seen = (this->*condition)();
  Explorer::current().Remark(seen ? yes : no);
  return seen;
}

void SleepWakeModel::Count(uint8_t& counter, int change) {
  const int now = counter + change;
  // Twice: a worker that has announced its sleep and still searches may be chosen, and counted, once more.
  if (now < 0 || now > 2 * scenario_.workers) Explorer::current().Fail("a count of workers is wrong");
  counter = static_cast<uint8_t>(now);
}

void SleepWakeModel::Lock() {
  Explorer::current().PointWhile<uint8_t>(&s_.locked, 1);
  Explorer::current().Remark("locks");
  s_.locked = 1;
}
void SleepWakeModel::Unlock() {
  Step("unlocks");
  s_.locked = 0;
}

void SleepWakeModel::HeavyFence() {
  Step("heavy fence");
  for (StoreBuffer& buffer : s_.posted) buffer.Flush();
}

bool SleepWakeModel::HasReady() const {
  int visible = 0;
  for (const StoreBuffer& buffer : s_.posted) visible += buffer.visible;
  return visible > s_.taken;
}

bool SleepWakeModel::Take() {
  if (!Look(&SleepWakeModel::HasReady, "takes an op", "finds nothing")) return false;
  ++s_.taken;
  if (s_.taken == scenario_.posters * scenario_.posts) s_.all_taken = 1;
  return true;
}

void SleepWakeModel::PosterMain(int poster) {
  for (int i = 0; i < scenario_.posts; ++i) {
    Step("posts an op");
    s_.posted[poster].Add();
    Notify(poster);
  }
}

// The light fence is nothing at run time: the post may still be in the buffer when it looks for sleepers.
void SleepWakeModel::Notify(int poster) {
  if (!Look(&SleepWakeModel::HasSleepers, "sees a sleeper", "sees no sleeper")) return;
  if (poster != kNoPoster && !Has(SleepFault::kReliesUnfenced)) {
    Step("full fence");
    s_.posted[poster].Flush();
  }
  if (!Look(&SleepWakeModel::HasSearchers, "sees a searcher", "sees no searcher")) WakeOne(poster);
}

void SleepWakeModel::WakeOne(int poster) {
  Lock();
  if (poster != kNoPoster) s_.posted[poster].Flush();  // taking a lock empties the taker's own buffer
  if (s_.in_list == 0) return Unlock();
  const int worker = s_.list[--s_.in_list];
  s_.list[s_.in_list] = 0;
  Step("chooses a sleeper");
  Count(s_.sleepers, -1);
  Step("counts it as a searcher");
  Count(s_.searchers, +1);
  if (!Has(SleepFault::kWokenOutsideLock)) s_.asleep[worker] = 0;
  Unlock();
  if (Has(SleepFault::kWokenOutsideLock)) {
    Step("clears the sleeper's flag");
    s_.asleep[worker] = 0;
  }
}

void SleepWakeModel::WorkerMain(int worker) {
  for (;;) {
    if (!Take()) Search(worker);
    Run();
  }
}

void SleepWakeModel::Search(int worker) {
  Step("searches");
  Count(s_.searchers, +1);
  while (!Take()) Sleep(worker);
  Step("stops searching");
  Count(s_.searchers, -1);
  if (s_.searchers != 0 || Has(SleepFault::kNobodyPassesOn)) return;
  if (!Look(&SleepWakeModel::HasSleepers, "sees a sleeper", "sees no sleeper")) return;  // nobody to pass it on to
  if (Look(&SleepWakeModel::HasReady, "sees more", "sees no more")) Notify(kNoPoster);
}

// Entered and left as a searcher.
void SleepWakeModel::Sleep(int worker) {
  Lock();
  s_.list[s_.in_list++] = static_cast<uint8_t>(worker);
  s_.asleep[worker] = 1;
  Step("announces its sleep");
  Count(s_.sleepers, +1);
  Unlock();
  const auto stop_searching = [this] {
    Step("stops searching");
    Count(s_.searchers, -1);
  };
  if (!Has(SleepFault::kSearcherUntilAsleep)) stop_searching();
  if (!Has(SleepFault::kNoHeavyFence)) HeavyFence();
  const bool found = !Has(SleepFault::kNoSecondLook) && Look(&SleepWakeModel::HasReady, "sees an op", "sees no op");
  if (Has(SleepFault::kSearcherUntilAsleep)) stop_searching();
  if (!found) {
    Explorer::current().PauseWhile<uint8_t>(&s_.asleep[worker], 1);
    Explorer::current().Remark("is awake");
    return;
  }
  Lock();
  const auto end = s_.list.begin() + s_.in_list;
  const auto at = std::find(s_.list.begin(), end, static_cast<uint8_t>(worker));
  if (at == end) return Unlock();  // chosen meanwhile, and counted as a searcher
  std::copy(at + 1, end, at);
  s_.list[--s_.in_list] = 0;
  s_.asleep[worker] = 0;
  Step("takes its announcement back");
  Count(s_.sleepers, -1);
  Step("searches again");
  Count(s_.searchers, +1);
  Unlock();
}

void SleepWakeModel::Run() {
  if (scenario_.ops_meet) Explorer::current().PauseWhile<uint8_t>(&s_.all_taken, 0);
  Step("ends its op");
}

}  // namespace checker
