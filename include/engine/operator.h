// Operator: an op that is registered once and pushed often (MXNet: NewOperator). Its sets are sorted once, and its
// closure is stored once.
//
//   const engine::Operator step = eng.NewOperator({.name = "step", .updates = {weights}}, [&] { Step(); });
//   for (int i = 0; i < 1000; ++i) eng.Push(step);
//
// Threads:   any. All pushes share the closure, which may run concurrently with itself.
// Ownership: a counted handle, which may outlive its engine. The closure is destroyed with the last handle and the last
//            pending push.
// Order:     as of any push. Errors: those of Engine::NewOperator and Engine::Push.
#pragma once

#include <memory>

namespace engine {

class Engine;

class Operator {
 public:
  Operator() noexcept = default;
  explicit operator bool() const noexcept { return state_ != nullptr; }
  struct State;  // defined in src/engine/core

 private:
  friend class Engine;
  std::shared_ptr<State> state_;
};

}  // namespace engine
