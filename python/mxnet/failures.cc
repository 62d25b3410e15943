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
  const std::lock_guard lock(mu_);
  const auto failure = std::make_shared<Failure>(std::move(exception), op, counts_.failed++);
  ++live_;
  all_live_.fetch_add(1, std::memory_order_relaxed);
  // Those that a wait has taken need not be kept for WaitForAll.
  std::erase_if(listed_, [this](const FailurePtr& f) { return !Live(*f); });
  if (listed_.size() < kMostListed) {
    listed_.push_back(failure);
  } else {
    ++counts_.unlisted;
  }
  log_.push_back(failure);
  if (log_.size() > kMostListed) log_.pop_front();
  return failure;
}

FailurePtr Failures::Inherited(const ::engine::RunContext& ctx) {
  for (const ::engine::NamedVar& named : ctx.vars()) {
    Var* const var = static_cast<Var*>(named.var.tag());
    if (!var->failed.load(std::memory_order_relaxed)) continue;
    const std::lock_guard lock(mu_);
    if (var->failure && Live(*var->failure)) return var->failure;
  }
  return nullptr;
}

void Failures::Mark(std::span<Var* const> vars, const FailurePtr& failure) {
  const std::lock_guard lock(mu_);
  if (!Live(*failure)) return;
  for (Var* var : vars) {
    var->failure = failure;
    var->failed.store(true, std::memory_order_relaxed);
  }
}

void Failures::CountSkip(Failure& failure) {
  const std::lock_guard lock(mu_);
  ++failure.skipped;
  ++counts_.skipped;
}

bool Failures::TakeIt(Failure& failure) {
  if (!Live(failure)) return false;
  failure.taken = true;
  --live_;
  all_live_.fetch_sub(1, std::memory_order_relaxed);
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
  if (!live_) return nullptr;
  std::exception_ptr first;
  for (const auto* list : {&listed_, &log_})
    for (auto f = list->begin(); f != list->end() && !first; ++f)
      if (Live(**f)) first = (*f)->exception;
  if (!first) {
    first = std::make_exception_ptr(dmlc::Error(std::to_string(live_) + " ops have failed, and later ones since: " +
                                                "engine.mxnet.failures() has the last " + std::to_string(kMostListed)));
  }
  counts_.dropped += live_ - 1;
  all_live_.fetch_sub(live_, std::memory_order_relaxed);
  live_ = 0;
  cleared_ = counts_.failed;
  listed_.clear();
  return first;
}

Failures::Counts Failures::counts() const {
  const std::lock_guard lock(mu_);
  return counts_;
}

std::vector<Failures::Entry> Failures::log() const {
  const std::lock_guard lock(mu_);
  std::vector<Entry> entries;
  for (const FailurePtr& f : log_) entries.push_back({f->op, TextOf(f->exception), f->skipped, !Live(*f)});
  return entries;
}

std::vector<Var*> ChangedBy(const ::engine::RunContext& ctx) {
  std::vector<Var*> changed;
  for (const ::engine::NamedVar& named : ctx.vars())
    if (named.mode != ::engine::AccessMode::kRead) changed.push_back(static_cast<Var*>(named.var.tag()));
  return changed;
}

Ledger& NewLedger() {
  static std::mutex mu;
  static auto* const all = new std::deque<Ledger>;
  const std::lock_guard lock(mu);
  return all->emplace_back();
}

Ledger& HostLedger() {
  static Ledger& ledger = NewLedger();
  return ledger;
}

}  // namespace engine_mxnet
