#include "completion.h"

#include <future>
#include <memory>
#include <mutex>
#include <vector>

namespace engine_mxnet {

Call* Call::Make() {
  if (!t_here.ending) Here::Keep();
  return new Call(&t_here);
}

void Call::GiveBack(std::exception_ptr& error) {
  if (error_) [[unlikely]]
    error = std::exchange(error_, nullptr);
  state_.store(kRunning, std::memory_order_relaxed);
  if (t_here.spare || t_here.ending) [[unlikely]] {  // of a function that ran inside this one; or the thread ends
    delete this;
  } else {
    t_here.spare = this;
  }
}

void Call::Threw() {
  if (state_.load(std::memory_order_acquire) == kCalled) {
    std::exception_ptr error;
    GiveBack(error);
    return;
  }
  settle_ = [](const std::exception_ptr&) {};
  if (state_.exchange(kLeft, std::memory_order_acq_rel) == kCalled) {
    delete this;
    return;
  }
  // A copy of the callback may be anywhere: the Call is kept for it. It costs these bytes, once a function that throws.
  static std::mutex mu;
  static auto* const kept = new std::vector<Call*>;  // never looked at: so that a leak checker finds them
  const std::lock_guard lock(mu);
  kept->push_back(this);
}

void Call::Called(abi::Engine*, void* param, const dmlc::Error* error) {
  Call* const call = static_cast<Call*>(param);
  if (error) [[unlikely]]
    call->error_ = std::make_exception_ptr(*error);
  // On the thread that runs the function, and inside it: nobody else looks at the Call.
  if (call->thread_ == &t_here && call->state_.load(std::memory_order_relaxed) == kRunning) [[likely]]
    return call->state_.store(kCalled, std::memory_order_relaxed);
  call->elsewhere_ = call->thread_ != &t_here;
  // acq_rel: publishes error_ and elsewhere_, or sees settle_. Partner: the exchange in Returned.
  if (call->state_.exchange(kCalled, std::memory_order_acq_rel) != kLeft) return;
  const std::unique_ptr<Call> over(call);
  over->settle_(std::move(over->error_));
}

void RunHere(const abi::AsyncFn& fn, abi::Context context) {
  const Inside inside;
  std::promise<std::exception_ptr> said;
  const auto called = [](abi::Engine*, void* param, const dmlc::Error* error) {
    static_cast<std::promise<std::exception_ptr>*>(param)->set_value(error ? std::make_exception_ptr(*error) : nullptr);
  };
  fn({.context = context}, {called, nullptr, &said});
  if (std::exception_ptr error = said.get_future().get()) std::rethrow_exception(error);
}

}  // namespace engine_mxnet
