// What is done when the first member of a released chain waits for an op outside: mostly nothing, because all others wait
// for it or for the same. Else they are distributed over parts, all of them in one pass.
//
// Nothing here throws, or fails: where there is no memory to see more, what an op's count of grants says is enough.
#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <new>
#include <span>

#include "core/core.h"

namespace engine::detail {
namespace {

// Whatever `head` waits for, a later `op` waits for as well, if it names all of the same Vars: it can't be ready first.
bool NamesAllOf(OpRecord* head, OpRecord* op) {
  if (head->n_access > op->n_access) return false;
  const std::span<Access> named(op->accesses(), op->n_access);
  return std::all_of(head->accesses(), head->accesses() + head->n_access, [&](const Access& of) {
    return std::any_of(named.begin(), named.end(), [&](const Access& a) { return a.var == of.var; });
  });
}

// acquire: the last granters, as in GrantMany. More than the start is missing.
bool IsBlocked(const OpRecord* op) { return op->wait.load(std::memory_order_acquire) > 1; }

// Members in the order of their push, linked as in a chain.
struct Part {
  OpRecord* first;
  OpRecord* last;

  void Append(OpRecord* op) {
    if (first) {
      last->extra.next = op;
      last->extra.more_behind = true;
    } else {
      first = op;
    }
    last = op;
  }
};

// Takes the members one by one and says where each goes: to what it is ordered behind, the earliest part if there are
// several; else to one whose first it can't be ready before; else, if it is blocked, to a part of its own; else to the
// free part, of those that nothing blocks.
class Placing {
 public:
  Placing(size_t members, size_t accesses) {
    const size_t places = std::bit_ceil(2 * accesses);
    if (places > few_touched_.size()) {
      many_touched_.reset(new (std::nothrow) Touched[places]);
      touched_ = many_touched_.get();
    }
    if (members > few_parts_.size()) {
      many_parts_.reset(new (std::nothrow) Part[members]);
      parts_ = many_parts_.get();
    }
    shift_ = 64 - static_cast<uint32_t>(std::countr_zero(places));
    if (touched_) std::fill_n(touched_, places, Touched{nullptr, kNone, kNone, kNone});
  }

  bool HasMemory() const { return touched_ && parts_; }

  void Place(OpRecord* op) {
    uint32_t part = kNone;
    for (const Access& a : AccessesOf(op)) {
      const Touched& before = Find(a.var);
      part = std::min({part, before.written_by, a.read() ? kNone : before.read_by});
    }
    if (part >= kFree) part = std::min(part, NamedBy(op));
    if (part == kNone) part = IsBlocked(op) ? NewPart(op) : kFree;
    for (const Access& a : AccessesOf(op)) {
      Touched& now = Find(a.var);
      if (a.read()) {
        now.read_by = std::min(now.read_by, part);
      } else {
        now.written_by = part;
        now.read_by = kNone;  // whoever comes is behind the write
      }
    }
    (part == kFree ? free_ : parts_[part]).Append(op);
  }

  // All parts, the free one last.
  std::span<Part> Parts() {
    if (free_.first) parts_[count_++] = free_;
    return {parts_, count_};
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kFree = kNone - 1;

  // By whom of the members seen so far: numbers of parts.
  struct Touched {
    const Protocol::Var* var;
    uint32_t written_by;
    uint32_t read_by;  // since then; of several, the first
    uint32_t head;     // the last part whose first member names it
  };

  static std::span<Access> AccessesOf(OpRecord* op) { return {op->accesses(), op->n_access}; }

  // Half of the places stay empty.
  Touched& Find(const Protocol::Var* var) {
    const size_t mask = (size_t{1} << (64 - shift_)) - 1;
    size_t at = (reinterpret_cast<uintptr_t>(var) * uint64_t{0x9e3779b97f4a7c15}) >> shift_;
    while (touched_[at].var != var && touched_[at].var) at = (at + 1) & mask;
    touched_[at].var = var;
    return touched_[at];
  }

  uint32_t NewPart(OpRecord* op) {
    parts_[count_] = {};
    for (const Access& a : AccessesOf(op)) Find(a.var).head = count_;
    return count_++;
  }

  uint32_t NamedBy(OpRecord* op) {
    uint32_t tried = kNone;
    for (const Access& a : AccessesOf(op)) {
      const uint32_t part = Find(a.var).head;
      if (part == kNone || part == tried) continue;
      if (NamesAllOf(parts_[part].first, op)) return part;
      tried = part;
    }
    return kNone;
  }

  // Enough for the bulks that are usual.
  std::array<Touched, 128> few_touched_;
  std::array<Part, 32> few_parts_;
  std::unique_ptr<Touched[]> many_touched_;
  std::unique_ptr<Part[]> many_parts_;
  Touched* touched_ = few_touched_.data();
  Part* parts_ = few_parts_.data();
  uint32_t shift_;
  uint32_t count_ = 0;
  Part free_{};
};

// Takes a list of members apart.
template <class F>
void UnlinkEach(OpRecord* first, F&& each) {
  for (bool more = true; more;) {
    OpRecord* const op = first;
    more = op->extra.more_behind;
    first = op->extra.next;
    op->extra.more_behind = false;
    each(op);
  }
}

HeldChain* TryNewChain(ThreadSlot& slot) noexcept {
  try {
    return static_cast<HeldChain*>(slot.var_cache.Get(kChainClass));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

// Of a chain whose first member is blocked: whether others could start before it.
bool EngineCore::MustSplit(ThreadSlot& slot, HeldChain& chain) {
  if (chain.looks == HeldChain::kInOrder) return false;
  if (++chain.looks > tuning::kMostLooks) return true;
  OpRecord* const head = chain.first;
  OpRecord* last_kept = head;
  bool in_order = true;
  uint64_t looked_at = 0;
  // Mostly each depends on the one before it, or waits for the same, and all stay.
  for (; last_kept->extra.more_behind; last_kept = last_kept->extra.next, ++looked_at) {
    if (Protocol::Follows(last_kept, last_kept->extra.next)) continue;
    in_order = false;
    if (!NamesAllOf(head, last_kept->extra.next)) break;
  }
  slot.split_looks.Add(looked_at);
  if (in_order) chain.looks = HeldChain::kInOrder;
  return last_kept->extra.more_behind;
}

// Distributes the members of a chain, and starts the first of each part. Returns that of the last one.
OpRecord* EngineCore::Split(Pass& pass, HeldChain& chain) {
  // Two chains know nothing of each other's turns.
  size_t members = 0, accesses = 0;
  for (OpRecord* op = chain.first;; op = op->extra.next) {
    Protocol::GrantInstead(op);
    ++members;
    accesses += op->n_access;
    if (!op->extra.more_behind) break;
  }
  pass.slot->split_looks.Add(members);
  if (chain.looks > tuning::kMostLooks) return KeepReady(pass, chain);
  Placing placing(members, accesses);
  if (!placing.HasMemory()) return KeepReady(pass, chain);
  UnlinkEach(chain.first, [&](OpRecord* op) { placing.Place(op); });
  // Until its part has a chain of its own, a member names this one, which therefore goes to the last.
  const std::span<Part> parts = placing.Parts();
  for (const Part& part : parts.first(parts.size() - 1)) {
    HeldChain* const own = part.first->extra.more_behind ? TryNewChain(*pass.slot) : nullptr;
    if (!own) {
      StartEach(pass, part.first);
      continue;
    }
    own->first = part.first;
    own->looks = chain.looks;
    // relaxed: whoever looks finds one of two chains that are both released.
    for (OpRecord* op = part.first;; op = op->extra.next) {
      std::atomic_ref(op->chain()).store(own, std::memory_order_relaxed);
      if (!op->extra.more_behind) break;
    }
    StartFirst(pass, *own);
  }
  chain.first = parts.back().first;
  return StartFirst(pass, chain);
}

// The members that have all their grants stay, in a chain that nothing blocks any more. Returns the first of them, or null.
OpRecord* EngineCore::KeepReady(Pass& pass, HeldChain& chain) {
  Part ready{};
  UnlinkEach(chain.first, [&](OpRecord* op) { IsBlocked(op) ? StartEach(pass, op) : ready.Append(op); });
  chain.first = ready.first;
  if (ready.first) return StartFirst(pass, chain);
  pass.slot->var_cache.Return(kChainClass, &chain);
  return nullptr;
}

// Out of turn: each as soon as it is granted last.
void EngineCore::StartEach(Pass& pass, OpRecord* first) {
  UnlinkEach(first, [&](OpRecord* op) {
    LetGo(op);
    Protocol::ReleaseBias(pass, op);
  });
}

OpRecord* EngineCore::StartFirst(Pass& pass, HeldChain& chain) {
  OpRecord* const op = chain.first;
  TakeFirst(*pass.slot, chain);
  Protocol::ReleaseBias(pass, op);
  return op;
}

}  // namespace engine::detail
