// ErrorRecord: what is known about a failure; counted, and shared by the Vars that it poisons. ErrorLedger: the
// failures that no wait has shown yet.
//
// A root record has the cause and the op that failed. Each op that is skipped because of it adds a hop record, which
// points to the record before, up to kMaxHops; then the last hop stands for all later ones.
//
// Threads:   records do not change, except `refs` and `seen`; the ledger has a mutex. Programs without errors use none
//            of this.
// Ownership: whoever keeps a pointer to a record has a count of it. OpError copies what it needs.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <string>
#include <vector>

#include "base/sync.h"
#include "engine/error.h"

namespace engine::detail {

// For messages: "file:line"; "Delete at file:line", or "Delete" where the line is not known, as from C; "op 'load'" or
// "an unnamed op"; "op 'load' pushed at file:line".
std::string Demangled(const char* type);  // std::type_info::name(), as it is written in a program
inline std::string At(Site site) { return std::string(site.file) + ":" + std::to_string(site.line); }
inline std::string CallAt(const char* call, Site site) { return *site.file ? call + (" at " + At(site)) : call; }
inline std::string OpText(const char* op) { return *op ? "op '" + std::string(op) + "'" : "an unnamed op"; }
inline std::string OpAt(const char* op, Site site) { return OpText(op) + " pushed at " + At(site); }

inline std::string Quote(Name name) {
  if (!*name.c_str()) return "(unnamed)";
  std::string text(1, '\'');  // not `literal + string`, which warns under g++ 12 (-Wrestrict, its PR 105651)
  return text.append(name.c_str()).append(1, '\'');
}
std::string TypeText(const std::type_info* type);  // null: "nothing"

struct ErrorRecord {
  static constexpr uint32_t kMaxHops = 16;

  std::atomic<uint32_t> refs{1};
  // relaxed: decides only whether WaitAll still reports the error, which a wait for a Var may be showing just now.
  std::atomic<bool> seen{false};
  bool noted = false;             // of a root record: by the ledger, under its mutex
  std::exception_ptr cause;       // of a root record
  ErrorRecord* root = this;       // counted, unless it is this record
  ErrorRecord* before = nullptr;  // counted; the hop or root from which this hop came
  ErrorRecord* first = nullptr;   // counted; of a root: the error in spite of which its op ran
  uint32_t hops = 0;
  bool quiet = false;     // of a root: not reported as unseen, because somebody asked for it, or shows it
  bool reserved = false;  // from the reserve for failures without memory
  const char* op = "";
  Site site;

  // If there is no memory, a reserved record; if none is left, one that all such failures share, which names no op.
  static ErrorRecord* NewRoot(const char* op, Site site, std::exception_ptr cause) noexcept;
  // The same, for an op that did not start because somebody asked for that; it is not reported as unseen.
  static ErrorRecord* NewAskedFor(const char* op, Site site, std::exception_ptr cause) noexcept;
  void Quieten() noexcept;  // before anybody else knows of it
  // The record for `op_name`, which was skipped because of this record. Keeps this record's count, and returns a
  // counted record; if there is no memory, this one.
  ErrorRecord* Hop(const char* op_name, Site op_site) noexcept;
  // For an op that ran in spite of `poison` (may be null) and failed itself: remembers `poison` as the first error.
  void ChainTo(ErrorRecord* poison);
  bool IsRoot() const { return root == this; }

  ErrorRecord* Retain() {
    refs.fetch_add(1, std::memory_order_relaxed);  // relaxed: the caller holds a count already
    return this;
  }
  void Release();
  // Makes a new OpError, and marks the failure as seen.
  OpError Show();
};

// Throws the OpError of a counted record, and drops the count.
[[noreturn]] void Throw(ErrorRecord* error);

// The exception with which an op fails; bad_alloc if there is no memory for it.
template <class E>
std::exception_ptr MakeCause(const char* text) noexcept {
  try {
    return std::make_exception_ptr(E(text));
  } catch (...) {
    return std::current_exception();
  }
}

class ErrorLedger {
 public:
  static constexpr size_t kKept = 64;
  ErrorLedger();
  ~ErrorLedger();  // drops errors that came after the last TakeUnseen: there is nobody left to report them to
  // Takes a count. Does nothing if the record was added before: an op that was skipped without memory passes on the root.
  void Add(ErrorRecord* root) noexcept EXCLUDES(mu_);
  void PutBack(ErrorRecord* unseen) noexcept EXCLUDES(mu_);  // one from TakeUnseen that was not shown; takes a count
  // The oldest error that nobody has seen, counted; null if there is none. If only errors that were not kept are left,
  // an error that says how many.
  ErrorRecord* TakeUnseen() EXCLUDES(mu_);
  uint64_t unseen() const EXCLUDES(mu_);

 private:
  // Records that leave the ledger. They are released when its lock is free: with them end exceptions of the program, whose
  // destructors may call the engine. Lives around the lock.
  struct Seen {
    ~Seen() {
      for (size_t i = 0; i < count; ++i) records[i]->Release();
    }
    std::array<ErrorRecord*, kKept> records;
    size_t count = 0;
  };
  void Keep(ErrorRecord* root, Seen& seen) noexcept REQUIRES(mu_);
  void TakeSeen(Seen& seen) noexcept REQUIRES(mu_);

  mutable Mutex mu_;
  std::vector<ErrorRecord*> kept_ GUARDED_BY(mu_);  // has room for kKept
  uint64_t dropped_ GUARDED_BY(mu_) = 0;
};

// The text of whatever was thrown, of any type. A thrown null pointer and a what() that returns null are described as
// such.
std::string TextOf(const std::exception& error);
std::string DescribeException(const std::exception_ptr& cause);

}  // namespace engine::detail
