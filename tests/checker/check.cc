#include "check.h"

#include "world.h"

namespace checker {

namespace {

using engine::detail::Mutant;

template <Mutant M>
Outcome Run(const Scenario& scenario) {
  World<M> world(scenario);
  Explorer explorer(world);
  return explorer.Run();
}

}  // namespace

Outcome Check(const Scenario& scenario, Mutant mutant) {
  switch (mutant) {
    case Mutant::kNone: return Run<Mutant::kNone>(scenario);
    case Mutant::kSortedWithoutLocking: return Run<Mutant::kSortedWithoutLocking>(scenario);
    case Mutant::kLinkBeforePublish: return Run<Mutant::kLinkBeforePublish>(scenario);
    case Mutant::kDoneBeforeIdle: return Run<Mutant::kDoneBeforeIdle>(scenario);
    case Mutant::kMissingPin: return Run<Mutant::kMissingPin>(scenario);
    case Mutant::kMissingCloseBias: return Run<Mutant::kMissingCloseBias>(scenario);
    case Mutant::kDroppedGrant: return Run<Mutant::kDroppedGrant>(scenario);
    case Mutant::kOrderSwapOnOneVar: return Run<Mutant::kOrderSwapOnOneVar>(scenario);
    case Mutant::kForgottenHolder: return Run<Mutant::kForgottenHolder>(scenario);
    case Mutant::kTogetherOneByOne: return Run<Mutant::kTogetherOneByOne>(scenario);
    case Mutant::kSettledLate: return Run<Mutant::kSettledLate>(scenario);
  }
  return {};
}

}  // namespace checker
