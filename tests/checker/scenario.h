// Scenario: which threads push which ops. Written as text, so that a test shows all of it in a line.
//
//   "Wx Ry, Rx | del:Wx | settled:x"
//
// `|` separates pushing threads, `,` what one thread does in turn, blanks the accesses of one op. An access is a
// mode, R, U or W, and a Var: x, y or z. `none` is an op without accesses. Before an op:
//   del:    it ends the Var that it writes
//   held:   it is registered with a bias that another thread releases later
//   bulk:   it is registered with a bias, held together with the other such ops of its thread; these are released when
//           an op was registered that needs them, and never otherwise
//   async:  it is completed while its body may still look at it
//   keep:   it makes no version
//   parts:  it releases its accesses one by one, each by a thread of its own, as a plan's run does
//   unpinned: and has, wrongly, no pin of its own meanwhile
//   here:   if its push finds it ready, that thread runs it before it goes on (naive, inline)
//   inner:  the body of the op before it pushes it, and waits for its end before it ends itself
//   with:   it is registered in one step with the op before it, as the gates of a run are with the run's op; no Var twice
//   early:  of a held one, wrongly: another thread may release it before it is registered
//   twice:  it is, wrongly, completed twice
// Instead of an op, `settled:x` is a look at Settled(x).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "order/dependency.h"

namespace checker {

inline constexpr int kMaxOps = 6;
inline constexpr int kMaxVars = 3;
inline constexpr int kMaxPushers = 3;

struct AccessSpec {
  int var;
  engine::AccessMode mode;
  bool read() const { return mode == engine::AccessMode::kRead; }
};

struct OpSpec {
  std::string text;
  std::vector<AccessSpec> accesses;  // sorted by Var
  bool deletes = false;
  bool held = false;
  bool bulk = false;
  int pusher = 0;
  bool async = false;
  bool keeps_version = false;
  bool parts = false;
  bool unpinned = false;
  bool twice = false;
  bool here = false;
  bool inner = false;
  bool early = false;
  bool with = false;

  const AccessSpec* Find(int var) const;
  bool makes_version(const AccessSpec& access) const { return !access.read() && !keeps_version; }
};
bool Conflict(const OpSpec& a, const OpSpec& b);
bool ConflictOn(int var, const OpSpec& a, const OpSpec& b);

struct Item {
  enum Kind { kPush, kLookSettled } kind;
  int index;  // op or Var
};

struct Scenario {
  explicit Scenario(std::string_view text);

  // The ops that are registered in one step with this one, and it: [first, last].
  int FirstOf(int op) const;
  int LastOf(int op) const;

  std::string text;
  std::vector<OpSpec> ops;
  std::vector<std::vector<Item>> pushers;
  int vars = 0;
  size_t most_accesses = 0;
  int reads = 0;  // accesses, of all ops
  bool looks_settled = false;
  bool fine = false;   // points after accesses too, so that what is not atomic is a step of its own
  bool spins = false;  // run the spin loop on a locked tail, instead of blocking at its first exchange
};

inline char VarName(int var) { return static_cast<char>('x' + var); }

}  // namespace checker
