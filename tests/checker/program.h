// Program: what the explorer explores. It owns the shared memory, gives the rules, and names things for the trace.
//
// Everything that a step may change lies in memory(), as plain bytes, or on the stack of a virtual thread. Steps
// allocate nothing, and keep nothing anywhere else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace checker {

enum class AccessKind : uint8_t { kLoad, kStore, kExchange, kCompareExchange, kFailedCompareExchange, kAdd };

// One line of a trace: an atomic access, or a remark of the program.
struct Event {
  const char* remark = nullptr;  // null for an access
  const void* where = nullptr;   // the word accessed
  uint64_t before = 0;           // its value, or the remark's number
  uint64_t after = 0;
  uint64_t tag = 0;  // whatever the program needs to name things as they were then
  AccessKind kind = AccessKind::kLoad;
  uint8_t thread = 0;
};

class Program {
 public:
  virtual ~Program() = default;

  virtual std::span<std::byte> memory() = 0;
  // Called once: adds the threads, sets the first state up and starts the threads that run from the beginning.
  virtual void Begin() = 0;
  // Around each atomic access, on the thread that makes it: decides whether it is a scheduling point, checks it.
  virtual void BeforeAccess(const void* word, AccessKind kind, uint64_t desired);
  virtual void AfterAccess(const void*, AccessKind, uint64_t /*before*/, uint64_t /*after*/) {}
  // No thread can run. Null if the program may end so, else the rule that is broken.
  virtual const char* AtRest() = 0;

  virtual uint64_t Tag() const { return 0; }
  virtual std::string NameOf(const Event& event) const = 0;
  virtual std::string ValueOf(const Event& event, uint64_t value) const;
};

}  // namespace checker
