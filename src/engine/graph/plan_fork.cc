// Plans and forks: the locks of all plans are taken before a fork and dropped in both processes.
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "graph/plan_core.h"

namespace engine::detail {
namespace {

constinit Mutex g_plans_mu;  // guards the list; taken over a fork
// The list of all plans. Never destroyed, because a fork may come late.
std::vector<std::weak_ptr<PlanCore>>& Plans() {
  static auto* plans = new std::vector<std::weak_ptr<PlanCore>>;
  return *plans;
}
// The plans whose locks the current fork has taken.
std::vector<std::shared_ptr<PlanCore>>& LockedPlans() {
  static auto* plans = new std::vector<std::shared_ptr<PlanCore>>;
  return *plans;
}

}  // namespace

void EnlistPlan(const std::shared_ptr<PlanCore>& plan) {
  MutexLock lock(g_plans_mu);
  auto& plans = Plans();
  if (std::has_single_bit(plans.size()))  // not at every plan
    std::erase_if(plans, [](const auto& other) { return other.expired(); });
  plans.push_back(plan);
}

// Called before any push gate is closed, because a frame that is being made may drop Vars.
void LockPlans() NO_THREAD_SAFETY_ANALYSIS {
  g_plans_mu.Lock();
  for (const auto& listed : Plans()) {
    std::shared_ptr<PlanCore> plan = listed.lock();
    if (!plan) continue;
    plan->frames_mu.Lock();
    plan->model_mu.Lock();
    LockedPlans().push_back(std::move(plan));
  }
}

std::vector<std::shared_ptr<PlanCore>> UnlockPlans() NO_THREAD_SAFETY_ANALYSIS {
  auto locked = std::exchange(LockedPlans(), {});
  for (const auto& plan : locked) {
    plan->model_mu.Unlock();
    plan->frames_mu.Unlock();
  }
  g_plans_mu.Unlock();
  return locked;
}

}  // namespace engine::detail
