#include "completion.h"

#include <future>
#include <memory>
#include <utility>

namespace engine_mxnet {
namespace {

// The Call that this thread uses next. A function may run others on its stack, so it is taken out meanwhile.
thread_local std::unique_ptr<Call> t_spare;

}  // namespace

Call* Call::Take() {
  if (t_spare) return t_spare.release();
  return new Call;
}

void Call::GiveBack(std::exception_ptr& error) {
  error = std::move(error_);
  error_ = nullptr;
  settle_ = nullptr;
  state_.store(kRunning, std::memory_order_relaxed);
  t_spare.reset(this);
}

bool Call::Threw() {
  if (state_.load(std::memory_order_acquire) == kCalled) {
    std::exception_ptr error;
    GiveBack(error);
    return true;
  }
  // A copy of the callback may be anywhere. It costs these bytes, once a function that throws.
  settle_ = [](const std::exception_ptr&) {};
  if (state_.exchange(kLeft, std::memory_order_acq_rel) == kCalled) delete this;
  return false;
}

void Call::Called(abi::Engine*, void* param, const dmlc::Error* error) {
  Call* const call = static_cast<Call*>(param);
  if (error) call->error_ = std::make_exception_ptr(*error);
  // acq_rel: publishes error_, or sees settle_. Partner: the exchange in Returned.
  if (call->state_.exchange(kCalled, std::memory_order_acq_rel) != kLeft) return;
  const std::unique_ptr<Call> over(call);
  over->settle_(std::move(over->error_));
}

void RunHere(const abi::AsyncFn& fn, abi::Context context, abi::Engine* engine) {
  std::promise<std::exception_ptr> said;
  const auto called = [](abi::Engine*, void* param, const dmlc::Error* error) {
    static_cast<std::promise<std::exception_ptr>*>(param)->set_value(error ? std::make_exception_ptr(*error) : nullptr);
  };
  fn({.context = context}, {called, engine, &said});
  if (std::exception_ptr error = said.get_future().get()) std::rethrow_exception(error);
}

}  // namespace engine_mxnet
