#include "failures.h"

#include <algorithm>

namespace engine_mxnet {

namespace {

// MXNet's C API lets only std::exception end well: anything else would take the process down.
std::exception_ptr AsStdException(std::exception_ptr thrown, const char* op) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception&) {
    return thrown;
  } catch (...) {
    return std::make_exception_ptr(dmlc::Error("op '" + std::string(op) + "' threw what is no std::exception"));
  }
}

std::string TextOf(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

FailurePtr Failures::Add(std::exception_ptr exception, const char* op) {
  exception = AsStdException(std::move(exception), op);
  const auto failure = std::make_shared<Failure>(std::move(exception), op);
  const std::lock_guard lock(mu_);
  live_.fetch_add(1, std::memory_order_relaxed);
  ++counts_.failed;
  Prune();
  if (listed_.size() < kMostListed) {
    listed_.push_back(failure);
  } else {
    ++counts_.unlisted;
  }
  log_.push_back(failure);
  if (log_.size() > kMostListed) log_.pop_front();
  return failure;
}

// Those that a wait has taken need not be kept for WaitForAll.
void Failures::Prune() {
  std::erase_if(listed_, [](const FailurePtr& f) { return !f->live.load(std::memory_order_relaxed); });
}

FailurePtr Failures::Inherited(const ::engine::RunContext& ctx) {
  if (!any()) return nullptr;
  for (const ::engine::NamedVar& named : ctx.vars()) {
    Var* const var = static_cast<Var*>(named.var.tag());
    if (!var->failed.load(std::memory_order_relaxed)) continue;
    const std::lock_guard lock(mu_);
    if (var->failure && var->failure->live.load(std::memory_order_relaxed)) return var->failure;
  }
  return nullptr;
}

void Failures::Mark(std::span<Var* const> vars, const FailurePtr& failure) {
  const std::lock_guard lock(mu_);
  if (!failure->live.load(std::memory_order_relaxed)) return;
  for (Var* var : vars) {
    var->failure = failure;
    var->failed.store(true, std::memory_order_relaxed);
  }
}

void Failures::CountSkip(Failure& failure) {
  failure.skipped.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mu_);
  ++counts_.skipped;
}

bool Failures::TakeIt(Failure& failure) {
  if (!failure.live.exchange(false, std::memory_order_relaxed)) return false;
  live_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

std::exception_ptr Failures::Take(Var& var) {
  if (!var.failed.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard lock(mu_);
  var.failed.store(false, std::memory_order_relaxed);
  const FailurePtr failure = std::move(var.failure);
  return failure && TakeIt(*failure) ? failure->exception : nullptr;
}

std::exception_ptr Failures::TakeAll() {
  if (!any()) return nullptr;
  const std::lock_guard lock(mu_);
  std::exception_ptr first;
  for (const FailurePtr& failure : listed_) {
    if (!TakeIt(*failure)) continue;
    if (first) {
      ++counts_.dropped;
    } else {
      first = failure->exception;
    }
  }
  listed_.clear();
  return first;
}

Failures::Counts Failures::counts() const {
  const std::lock_guard lock(mu_);
  return counts_;
}

std::vector<Failures::Entry> Failures::log() const {
  std::vector<FailurePtr> last;
  {
    const std::lock_guard lock(mu_);
    last.assign(log_.begin(), log_.end());
  }
  std::vector<Entry> entries;
  for (const FailurePtr& f : last)
    entries.push_back({f->op, TextOf(f->exception), f->skipped.load(std::memory_order_relaxed),
                       !f->live.load(std::memory_order_relaxed)});
  return entries;
}

std::vector<Var*> ChangedBy(const ::engine::RunContext& ctx) {
  std::vector<Var*> changed;
  for (const ::engine::NamedVar& named : ctx.vars())
    if (named.mode != ::engine::AccessMode::kRead) changed.push_back(static_cast<Var*>(named.var.tag()));
  return changed;
}

Failures& AllFailures() {
  static auto* failures = new Failures;  // never destroyed: ops may end while the process does
  return *failures;
}

}  // namespace engine_mxnet
