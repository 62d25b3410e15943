#include "drain_model.h"

#include <numeric>

namespace checker {

namespace {
constexpr uint8_t Bit(int i) { return static_cast<uint8_t>(1u << i); }
}  // namespace

int DrainModel::ops() const { return std::accumulate(scenario_.pushes.begin(), scenario_.pushes.end(), 0); }

void DrainModel::Begin() {
  Explorer& explorer = Explorer::current();
  int op = 0;
  for (int p = 0; p < kMaxPushers && scenario_.pushes[p]; op += scenario_.pushes[p++])
    explorer.Start(explorer.AddThread("pusher" + std::to_string(p), [this, p, op] { PusherMain(p, op); }));
  for (int w = 0; w < scenario_.waits; ++w)
    explorer.Start(explorer.AddThread("waiter" + std::to_string(w), [this] { WaiterMain(); }));
  if (scenario_.refusal) explorer.Start(explorer.AddThread("refused pusher", [this] { RefusedMain(); }));
  for (int i = 0; i < ops(); ++i)
    completer_[i] = explorer.AddThread("completer" + std::to_string(i), [this, i] { CompleterMain(i); });
  for (int i = 0; i < ops(); ++i) {
    for (const int parity : {0, 1})
      explorer.Start(explorer.AddThread("completer" + std::to_string(i) + "'s buffer",
                                        [this, i, parity] { s_.completed[i][parity].Drain(); }));
  }
}

const char* DrainModel::AtRest() {
  if (s_.ended != Bit(ops()) - 1) return "an op never ended";
  if (s_.waited != scenario_.waits) return "a WaitAll sleeps although everything has ended";
  return nullptr;
}

std::string DrainModel::NameOf(const Event& event) const {
  const std::string op = "op" + std::to_string(event.before);
  std::string text = event.remark;
  if (const size_t at = text.find('%'); at != text.npos) text.replace(at, 1, op);
  return text;
}

void DrainModel::Step(const char* what, int op) {
  Explorer::current().Point();
  Explorer::current().Remark(what, static_cast<uint64_t>(op));
}

void DrainModel::PusherMain(int pusher, int first_op) {
  for (int op = first_op; op < first_op + scenario_.pushes[pusher]; ++op) {
    Step("% reads the epoch", op);
    const uint8_t parity = s_.epoch;
    s_.parity[op] = parity;
    Step(parity ? "% is counted as pushed under 1" : "% is counted as pushed under 0", op);
    ++s_.pushed[pusher][parity].visible;  // whoever knows that the push has returned sees the count
    Step("the push of % returns", op);
    s_.returned |= Bit(op);
    Explorer::current().Start(completer_[op]);
  }
}

void DrainModel::CompleterMain(int op) {
  Step("% ends", op);
  s_.ended |= Bit(op);
  Step("% is counted as completed", op);
  s_.completed[op][s_.parity[op]].Add();
  NoteIfOver(op);
}

// Behind a light fence, which is nothing at run time: what was counted may still be in the buffer when we look who waits.
void DrainModel::NoteIfOver(int op) {
  const int parity = s_.parity[op];
  Step("looks whether somebody waits");
  if (s_.draining != 1 + parity) return;
  if (scenario_.fault == DrainFault::kUnfencedLook) {
    if (!Drained(parity, op)) return;
  } else {
    Step("locks the sums");
    for (StoreBuffer& buffer : s_.completed[op]) buffer.Flush();
    if (!Drained(parity)) return;
  }
  Step("notes a change");
  for (StoreBuffer& buffer : s_.completed[op])
    buffer.Flush();  // the note is a read-modify-write, behind what was counted
  ++s_.noted;
}

void DrainModel::RefusedMain() {
  Step("reads the epoch");
  const uint8_t parity = s_.epoch;
  Step("is counted as pushed");
  ++s_.refused[parity];
  Step("is refused and takes its count back");
  --s_.refused[parity];
  if (scenario_.fault == DrainFault::kRefusalUnnoted) return;
  Step("looks whether somebody waits");
  const int draining = s_.draining;
  if (draining == 0) return;
  Step("locks the sums");
  if (!Drained(draining - 1)) return;
  Step("notes a change");
  ++s_.noted;
}

void DrainModel::WaiterMain() {
  Step("WaitAll is called");
  const uint8_t must_end = s_.returned;
  Explorer::current().PointWhile<uint8_t>(&s_.locked, 1);
  Explorer::current().Remark("locks");
  s_.locked = 1;
  const int current = s_.epoch;
  if (scenario_.fault != DrainFault::kOneParity) WaitFor(current ^ 1);
  Step("turns the epoch over");
  s_.epoch ^= 1;
  WaitFor(current);
  Step("WaitAll returns");
  s_.locked = 0;
  ++s_.waited;
  if (must_end & ~s_.ended) Explorer::current().Fail("WaitAll returned before an op ended whose push had returned");
}

void DrainModel::WaitFor(int parity) {
  Step(parity ? "announces that it waits for 1" : "announces that it waits for 0");
  s_.draining = static_cast<uint8_t>(1 + parity);
  if (scenario_.fault != DrainFault::kNoHeavyFence) {
    Step("heavy fence");
    for (ByParity& completed : s_.completed)
      for (StoreBuffer& buffer : completed) buffer.Flush();
  }
  for (;;) {
    Step("reads the notes");
    const uint8_t noted = s_.noted;
    if (Drained(parity)) break;
    Explorer::current().PauseWhile<uint8_t>(&s_.noted, noted);
  }
  Step("waits no more");
  s_.draining = 0;
}

// `own`: the op of a completer whose own count is in its buffer, where it alone sees it.
bool DrainModel::Drained(int parity, int own) {
  if (scenario_.fault == DrainFault::kPushedFirst) {
    const int pushed = SumPushed(parity);
    return SumCompleted(parity, own) == pushed;
  }
  const int completed = SumCompleted(parity, own);
  return completed == SumPushed(parity);
}

int DrainModel::SumCompleted(int parity, int own) {
  int sum = 0;
  for (int i = 0; i < ops(); ++i) {
    Step("reads what % completed", i);
    sum += i == own ? 1 : s_.completed[i][parity].visible;
  }
  return sum;
}

int DrainModel::SumPushed(int parity) {
  int sum = 0;
  for (int p = 0; p < kMaxPushers && scenario_.pushes[p]; ++p) {
    Step("reads what a thread pushed");
    sum += s_.pushed[p][parity].visible;
  }
  if (scenario_.refusal) {
    Step("reads what the refused thread pushed");
    sum += s_.refused[parity];
  }
  return sum;
}

}  // namespace checker
