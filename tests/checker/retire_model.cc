#include "retire_model.h"

#include <algorithm>

namespace checker {

void RetireModel::Begin() {
  s_.pace = kAwake;  // it has looked at something before
  Explorer& explorer = Explorer::current();
  explorer.Start(explorer.AddThread("issuer", [this] { IssuerMain(); }));
  explorer.Start(explorer.AddThread("issuer's buffer", [this] { s_.issued.Drain(); }));
  explorer.Start(explorer.AddThread("device", [this] { DeviceMain(); }));
  explorer.Start(explorer.AddThread("thread", [this] { ThreadMain(); }));
  for (int w = 0; w < scenario_.waits; ++w)
    explorer.Start(explorer.AddThread("waiter" + std::to_string(w), [this] { WaiterMain(); }));
  if (scenario_.parks) parked_ = explorer.AddThread("parked op", [this] { ParkedMain(); });
}

const char* RetireModel::AtRest() {
  if (s_.reached != scenario_.ops) return "the device stands still";
  if (s_.waited != scenario_.waits + scenario_.parks) return "somebody sleeps although all has ended";
  return nullptr;
}

void RetireModel::Step(const char* what) {
  Explorer::current().Point();
  Explorer::current().Remark(what);
}

void RetireModel::IssuerMain() {
  for (int op = 0; op < scenario_.ops; ++op) {
    Step("the device has an op");
    ++s_.launched;
    Step("it counts as issued");
    s_.issued.Add();
    if (scenario_.parks && op + 1 == scenario_.ops) Explorer::current().Start(parked_);
    if (scenario_.fault == RetireFault::kSleeperNotWoken) continue;
    Step("looks whether the thread sleeps");
    if (s_.pace != kAsleep) continue;
    Step("wakes it");
    s_.issued.Flush();  // by a read-modify-write
    if (s_.pace == kAsleep) s_.pace = kDozing;
  }
}

void RetireModel::DeviceMain() {
  for (int op = 0; op < scenario_.ops; ++op) {
    Explorer::current().PauseWhile<uint8_t>(&s_.launched, s_.reached);
    Explorer::current().Remark("an op ends on the device");
    ++s_.reached;
  }
}

void RetireModel::WaiterMain() {
  Step("WaitAll announces itself");
  ++s_.host_waits;
  Step("heavy fence");
  s_.issued.Flush();
  Step("looks whether anything is issued");
  if (s_.issued.visible != s_.retired && scenario_.fault != RetireFault::kWaitAllUnnoticed) {
    Step("has the thread look");
    s_.pace = kAwake;
  }
  while (s_.retired != scenario_.ops) Explorer::current().PauseWhile<uint8_t>(&s_.retired, s_.retired);
  Step("WaitAll returns");
  --s_.host_waits;
  ++s_.waited;
}

void RetireModel::ParkedMain() {
  Step("looks whether it has to wait");
  if (s_.retired == scenario_.ops) {
    ++s_.waited;
    return;
  }
  const bool late = scenario_.fault == RetireFault::kAnnouncedTooLate;
  if (!late) ++s_.awaiting;
  Step("has the thread look");
  s_.pace = kAwake;
  if (late) {
    Step("announces itself");
    ++s_.awaiting;
  }
  while (s_.retired != scenario_.ops) Explorer::current().PauseWhile<uint8_t>(&s_.retired, s_.retired);
  ++s_.waited;
}

bool RetireModel::Awaited() {
  Step("looks whether somebody waits for everything");
  const bool all = s_.host_waits != 0;
  Step("looks whether something is parked");
  return all || s_.awaiting != 0;
}

void RetireModel::ThreadMain() {
  while (s_.retired != scenario_.ops) {
    const bool awaited = Awaited();
    Step("looks at what is issued");
    if (s_.issued.visible == s_.retired) {
      Step("says that it sleeps without work");
      s_.pace = kAsleep;
      if (scenario_.fault != RetireFault::kNoSecondLook) {
        if (scenario_.fault != RetireFault::kNoHeavyFence) {
          Step("heavy fence");
          s_.issued.Flush();
        }
        Step("looks again");
        if (s_.issued.visible != s_.retired) continue;
      }
      Explorer::current().PauseWhile<uint8_t>(&s_.pace, kAsleep);
      continue;
    }
    if (!awaited) {
      Step("says that it sleeps");
      s_.pace = kDozing;
      if (scenario_.fault != RetireFault::kNoSecondLook && Awaited()) continue;
      Explorer::current().PauseWhile<uint8_t>(&s_.pace, kDozing);
      continue;
    }
    Explorer::current().PauseWhile<uint8_t>(&s_.reached, s_.retired);  // asks again and again
    Explorer::current().Remark("finds that something has ended");
    s_.retired = std::min(s_.reached, s_.issued.visible);
    if (s_.retired == scenario_.ops) s_.awaiting = 0;
  }
}

}  // namespace checker
