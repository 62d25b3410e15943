// ErrorRecord: what is known about a failure, counted and shared by the Vars that it poisons; ErrorLedger: the
// failures that no wait has shown yet.
//
// A root record holds the cause and the op that failed. Each op skipped because of it adds a hop record that points
// to the one before, up to kMaxHops; beyond that the last hop stands for the rest.
//
// Threads:   records are immutable but for `refs` and `seen`; the ledger has a mutex. Nothing here is on the path of
//            programs without errors.
// Ownership: whoever holds a pointer holds a count. OpError copies what it needs.
#pragma once

#include <atomic>
#include <exception>
#include <string>
#include <vector>

#include "base/sync.h"
#include "engine/error.h"

namespace engine::detail {

// A part of messages.
inline std::string At(Site site) { return std::string(site.file) + ":" + std::to_string(site.line); }

struct ErrorRecord {
  static constexpr uint32_t kMaxHops = 16;

  std::atomic<uint32_t> refs{1};
  // relaxed: decides only whether WaitAll still reports it; showing an error twice would be harmless.
  std::atomic<bool> seen{false};
  std::exception_ptr cause;       // of a root
  ErrorRecord* root = this;       // counted unless this
  ErrorRecord* before = nullptr;  // counted; the hop (or root) that it came from
  ErrorRecord* first = nullptr;   // counted; of a root: the error that its op ran in spite of
  uint32_t hops = 0;
  bool cancelled = false;  // asked for, so not reported as unseen
  bool reserved = false;   // one of those kept for when there is no memory
  const char* op = "";
  Site site;

  // Without memory: a reserved one; when these are used up, one that all such failures share, and that says no op.
  static ErrorRecord* NewRoot(const char* op, Site site, std::exception_ptr cause) noexcept;
  // The record for `op`, skipped because of this one. Consumes nothing; returns a counted record. Without memory: this one.
  ErrorRecord* Hop(const char* op_name, Site op_site) noexcept;
  // For an op that ran in spite of `poison` (may be null) and failed itself: remembers what came first.
  void ChainTo(ErrorRecord* poison);
  bool IsRoot() const { return root == this; }

  ErrorRecord* Retain() {
    refs.fetch_add(1, std::memory_order_relaxed);  // relaxed: the caller holds a count already
    return this;
  }
  void Release();
  // A fresh wrapper; marks the failure as seen.
  OpError Show();
};

// Shows a counted record, and drops the count.
[[noreturn]] void Throw(ErrorRecord* error);

// The exception that an op fails with; bad_alloc where there is no memory for it.
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
  ~ErrorLedger();  // forgets what came after the last look: nobody is left to be told
  void Add(ErrorRecord* root) noexcept EXCLUDES(mu_);  // takes a count of its own
  // The oldest error that nobody has seen, counted; null if none. If only uncounted ones are left, an error that
  // says how many were not kept.
  ErrorRecord* TakeUnseen() EXCLUDES(mu_);
  uint64_t unseen() const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::vector<ErrorRecord*> kept_ GUARDED_BY(mu_);  // has room for kKept
  uint64_t dropped_ GUARDED_BY(mu_) = 0;
};

// The message of whatever was thrown, of any type. Always some text: a null pointer that was thrown, and a what() that
// returns null, are told as such.
std::string TextOf(const std::exception& error);
std::string DescribeException(const std::exception_ptr& cause);

}  // namespace engine::detail
