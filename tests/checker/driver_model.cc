#include "driver_model.h"

#include <algorithm>

#include "explorer.h"

namespace checker {

void DriverModel::Begin() {
  Explorer& explorer = Explorer::current();
  for (int w = 0; w < scenario_.waiters; ++w)
    explorer.Start(explorer.AddThread("waiter" + std::to_string(w), [this, w] { WaiterMain(w); }));
  explorer.Start(explorer.AddThread("poster", [this] { PosterMain(); }));
  explorer.Start(explorer.AddThread("poster's buffer", [this] { s_.queued.Drain(); }));
  for (int w = scenario_.posts; w < scenario_.waiters; ++w)
    explorer.Start(explorer.AddThread("end" + std::to_string(w), [this, w] {
      if (IsInside(w)) Explorer::current().PointWhile<uint8_t>(&s_.returned, 0);
      EndWait(w);
    }));
}

const char* DriverModel::AtRest() {
  return s_.returned == scenario_.waiters ? nullptr : "an op of the caller pool is left, and a thread waits for it";
}

std::string DriverModel::NameOf(const Event& event) const {
  std::string text = event.remark;
  if (const size_t at = text.find('%'); at != text.npos) text.replace(at, 1, std::to_string(event.before));
  return text;
}

void DriverModel::Step(const char* what, int waiter) {
  Explorer::current().Point();
  Explorer::current().Remark(what, static_cast<uint64_t>(waiter));
}

void DriverModel::WaiterMain(int waiter) {
  Step("waiter % begins", waiter);
  const bool used_then = s_.used;
  for (;;) {
    Step("waiter % looks whether it is over", waiter);
    if (s_.word[waiter] == kDone) break;
    if (IsInside(waiter)) {
      AskForDriver(waiter);
    } else if (Drive()) {
      continue;
    }
    Step("waiter % parks", waiter);
    if (s_.word[waiter] != kPending) break;
    s_.word[waiter] = kParked;
    Sleep(waiter);
    Step("waiter % is awake", waiter);
    if (s_.word[waiter] != kDone) s_.word[waiter] = kPending;
  }
  if (scenario_.fault != DriverFault::kNothingPassed) {
    Step("waiter % leaves", waiter);
    const bool used = scenario_.fault == DriverFault::kUsedReadEarly ? used_then : s_.used;
    if (used && HasReady()) WakeDriver(false);
  }
  Step("waiter % returns", waiter);
  ++s_.returned;
}

// One op of the pool, which ends the wait of the waiter with its number.
bool DriverModel::Drive() {
  Step("looks at the pool");
  if (!HasReady()) return false;
  const int op = s_.taken++;
  EndWait(op);
  return true;
}

void DriverModel::AskForDriver(int waiter) {
  Step("looks at the pool");
  if (!HasReady() || s_.refused[waiter]) return;
  Step("waiter % is refused a driver", waiter);
  s_.refused[waiter] = 1;
  if (scenario_.fault != DriverFault::kRefusedInSilence && s_.used && HasReady()) WakeDriver(false);
}

void DriverModel::Sleep(int waiter) {
  if (s_.refused[waiter]) return Explorer::current().PauseWhile(&s_.word[waiter], kParked);
  Lock();
  s_.list[s_.listed++] = static_cast<uint8_t>(waiter);
  s_.locked = 0;
  if (scenario_.fault != DriverFault::kNoHeavyFence) {
    Step("heavy fence");
    s_.queued.Flush();
  }
  Step("looks at the pool once more");
  if (!HasReady()) Explorer::current().PauseWhile(&s_.word[waiter], kParked);
  Lock();
  const auto end = s_.list.begin() + s_.listed;
  if (const auto at = std::find(s_.list.begin(), end, waiter); at != end)
    Unlist(static_cast<size_t>(at - s_.list.begin()));
  s_.locked = 0;
}

void DriverModel::Unlist(size_t at) {
  std::copy(s_.list.begin() + static_cast<std::ptrdiff_t>(at) + 1, s_.list.begin() + s_.listed,
            s_.list.begin() + static_cast<std::ptrdiff_t>(at));
  s_.list[--s_.listed] = 0;
}

void DriverModel::WakeDriver(bool posted) {
  Step("looks whether somebody is listed");
  if (s_.listed == 0) return;
  Lock();
  if (posted) s_.queued.Flush();  // the lock and the exchange of the word come behind what was queued
  while (s_.listed) {
    const int last = s_.list[s_.listed - 1];
    Unlist(s_.listed - 1u);
    Step("wakes waiter %", last);
    if (s_.word[last] != kParked) continue;
    s_.word[last] = kDrive;
    break;
  }
  s_.locked = 0;
}

void DriverModel::PosterMain() {
  for (int op = 0; op < scenario_.posts; ++op) {
    Step("op % is queued", op);
    s_.queued.Add();
    Step("the pool is used");
    s_.used = 1;
    WakeDriver(true);
  }
}

void DriverModel::EndWait(int waiter) {
  Step("what waiter % waits for has ended", waiter);
  s_.word[waiter] = kDone;
}

void DriverModel::Lock() {
  Explorer::current().PointWhile<uint8_t>(&s_.locked, 1);
  s_.locked = 1;
}

}  // namespace checker
