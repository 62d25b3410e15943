// Rules: what the engine promises about order, versions, deletion and waits, told as each thing happens.
//
// Knows ops, Vars and moments, and nothing of the protocol. Every method returns null, or the promise that is broken.
// A push is "called" as late and "returned" as early as the steps allow, and an op "ends" as late as they allow: that
// makes the promises as strong as they can be.
#pragma once

#include <array>
#include <cstdint>

#include "scenario.h"

namespace checker {

class Rules {
 public:
  // Part of the explored state, hence plain bytes. Masks have a bit an op, or a Var.
  struct State {
    struct OpState {
      uint8_t entered;   // Vars on which it has taken its place
      uint8_t behind;    // ops in its way that have not ended there
      uint8_t released;  // Vars on which it has ended
      bool returned;     // its push has
      bool ready;
      bool ended;
      bool refused;
      bool must_be_refused;  // a deletion was there before the push was called
    };
    struct VarState {
      uint8_t pushed;   // versions given out
      uint8_t version;  // versions made
      bool deleted;
    };
    std::array<OpState, kMaxOps> op;
    std::array<VarState, kMaxVars> var;
  };

  Rules(const Scenario& scenario, State& state) : scenario_(scenario), s_(state) {}

  void Called(int op);
  const char* Entered(int op, int var);
  const char* Returned(int op);
  const char* Refused(int op, int var);
  // `versions`: of its accesses, in the order of its OpSpec.
  const char* Ready(int op, const uint64_t* versions);
  const char* Ended(int op);
  const char* EndedOn(int op, int var);  // and goes on with its other Vars
  const char* LookedSettled(int var, bool settled);
  const char* AtRest(uint8_t held) const;  // mask of ops that need not have started

 private:
  bool OrderHasCycleThrough(int op) const;
  bool InTheWay(int op, int of) const;  // in conflict on a Var on which it has not ended

  const Scenario& scenario_;
  State& s_;
};

}  // namespace checker
