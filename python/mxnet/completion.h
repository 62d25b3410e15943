// Call: what MXNet's completion callback points to while an asynchronous function of MXNet runs, and until it is over.
//
// Most functions call back before they return, on the thread that runs them; then the Call is used again by the next one on
// that thread, and nothing of it is shared. One that has not yet called back when it returns takes the Call with it.
//
// Threads:   the callback may come from any thread, before or after the function returns. States of a Call:
//              kRunning --callback--> kCalled                  the body settles the op when the function has returned
//              kRunning --function returned--> kLeft --callback--> kCalled   the callback settles it
// Ownership: of the thread that runs the function; from kLeft on, of the callback that is still to come.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

#include "abi.h"
#include "here.h"

namespace engine_mxnet {

class Call {
 public:
  // A Call for a function that this thread is about to run.
  static Call* Take() {
    if (Call* const spare = std::exchange(t_here.spare, nullptr)) [[likely]]
      return spare;
    return Make();
  }

  // MXNet hands the engine back to the callback, which does not need it.
  abi::OnComplete callback() noexcept { return {&Called, nullptr, this}; }

  // After the function has returned. True: it has called back; `error` is what it said, `elsewhere` whether another thread did, and
  // the Call is given back. False: what `settle` returns will be called by the callback.
  template <class Settle>
  bool Returned(std::exception_ptr& error, bool& elsewhere, Settle&& settle) {
    // acquire: what the callback stored. Partner: the exchange in Called.
    if (state_.load(std::memory_order_acquire) == kCalled) [[likely]] {
      elsewhere = std::exchange(elsewhere_, false);
      GiveBack(error);
      return true;
    }
    settle_ = settle();
    // acq_rel: publishes settle_, or sees the callback's error. Partner: the exchange in Called.
    if (state_.exchange(kLeft, std::memory_order_acq_rel) != kCalled) return false;
    settle_ = nullptr;
    elsewhere = std::exchange(elsewhere_, false);
    GiveBack(error);
    return true;
  }
  // The function threw: nobody calls back any more, or has done so already. Whoever does all the same finds the Call.
  void Threw();

 private:
  enum State : uint32_t { kRunning, kCalled, kLeft };
  explicit Call(const Here* thread) noexcept : thread_(thread) {}
  static Call* Make();
  static void Called(abi::Engine*, void* param, const dmlc::Error* error);
  void GiveBack(std::exception_ptr& error);

  std::atomic<uint32_t> state_ = kRunning;
  const Here* const thread_;                        // that runs the function
  bool elsewhere_ = false;                          // another one called back; written before kCalled
  std::exception_ptr error_;                        // written before kCalled
  std::function<void(std::exception_ptr)> settle_;  // written before kLeft
};

// Runs an asynchronous function and waits for its callback. Throws what it threw, or said.
void RunHere(const abi::AsyncFn& fn, abi::Context context);

}  // namespace engine_mxnet
