// CheckEnv: the Env under which the dependency protocol is explored. What the protocol asks for goes to a Host.
#pragma once

#include <cstdint>

#include "checked_atomic.h"
#include "order/dependency.h"

namespace checker {

class Host {
 public:
  virtual void* TakeGroup() = 0;
  virtual void DropGroup(void* group) = 0;
  virtual void Recycle(void* op) = 0;
  virtual void OnReady(void* op) = 0;
  virtual uint32_t ExtraPins(const void* op) = 0;
  virtual void SpinOnLock() = 0;
  virtual void* Holder(const void* op) = 0;
  virtual bool Holds(void* holder) = 0;
  virtual void MustRelease(void* holder) = 0;

  static inline Host* current = nullptr;

 protected:
  ~Host() = default;
};

template <engine::detail::Mutant M>
struct CheckEnv {
  static constexpr engine::detail::Mutant kMutant = M;

  template <class T>
  using Atomic = CheckedAtomic<T>;
  struct Ctx {};
  struct OpExtra {
    uint32_t id;
  };
  struct PusherExtra {};
  struct CompleterExtra {};

  template <class Group>
  static Group* TakeGroup(Ctx&) {
    return static_cast<Group*>(Host::current->TakeGroup());
  }
  static void DropGroup(Ctx&, void* group) { Host::current->DropGroup(group); }
  static void Recycle(Ctx&, void* op) { Host::current->Recycle(op); }
  static void OnReady(Ctx&, void* op) { Host::current->OnReady(op); }
  static uint32_t ExtraPins(const void* op) { return Host::current->ExtraPins(op); }
  static void* Holder(const void* op) { return Host::current->Holder(op); }
  static void* HolderAtTail(const void* op) { return Host::current->Holder(op); }
  static bool IsHeld(const void* op) { return Host::current->Holder(op); }
  static bool Holds(void* holder) { return Host::current->Holds(holder); }
  static void MustRelease(Ctx&, void* holder) { Host::current->MustRelease(holder); }
  static void* Scratch(Ctx&) { return nullptr; }  // no scenario has so many accesses
  static void SpinOnLock(uint32_t) { Host::current->SpinOnLock(); }
  static void Prefetch(const void*) {}
  static void CheckGrant(const void*, uint32_t) {}  // what is granted and dropped too often, the World sees
  static void CheckPins(const void*, uint32_t) {}
};

}  // namespace checker
