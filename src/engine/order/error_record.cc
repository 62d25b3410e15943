#include "order/error_record.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <typeinfo>
#include <utility>

namespace engine::detail {

std::string Demangled(const char* type) {
  int status = 0;
  char* name = abi::__cxa_demangle(type, nullptr, nullptr, &status);
  std::string text = name ? name : type;
  std::free(name);
  return text;
}

std::string TypeText(const std::type_info* type) { return type ? "'" + Demangled(type->name()) + "'" : "nothing"; }

std::string TextOf(const std::exception& error) {
  const char* const text = error.what();
  return text ? text : "an exception of type " + Demangled(typeid(error).name()) + " without a text";
}

std::string DescribeException(const std::exception_ptr& cause) {
  if (!cause) return "no exception";
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& e) {
    return TextOf(e);
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {  // `throw nullptr` is caught here too
    return text ? text : "a null pointer was thrown";
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return type ? "an exception of type " + Demangled(type->name()) : "an exception of unknown type";
  }
}

namespace {

// Reserve: error records for failures when there is no memory. Never destroyed. Uses no lock, so that a fork finds it
// whole.
class Reserve {
 public:
  static Reserve& Get() {
    static auto* reserve = new Reserve;
    return *reserve;
  }
  ErrorRecord* Take() {
    // acquire: what the record's last user did with it. Partner: the release in Return.
    uint64_t free = free_.load(std::memory_order_relaxed);
    while (free && !free_.compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire)) {
    }
    if (!free) return shared_.Retain();
    ErrorRecord* r = ::new (&records_[static_cast<size_t>(__builtin_ctzll(free))]) ErrorRecord;
    r->reserved = true;
    return r;
  }
  void Return(ErrorRecord* r) {
    const auto i = static_cast<size_t>(reinterpret_cast<Place*>(r) - records_);
    r->~ErrorRecord();
    free_.fetch_or(uint64_t{1} << i, std::memory_order_release);
  }
  bool IsShared(const ErrorRecord* r) const { return r == &shared_; }

 private:
  Reserve() {
    shared_.cause = std::make_exception_ptr(Error("there was no memory to keep what an op failed with, nor which op"));
  }
  struct alignas(ErrorRecord) Place {
    std::byte bytes[sizeof(ErrorRecord)];
  };
  Place records_[64];
  std::atomic<uint64_t> free_{~uint64_t{0}};
  ErrorRecord shared_;  // this object's own count keeps it alive
};

// Made when the library is loaded, because a fork while it is being made would leave the static's guard locked in the
// child.
[[maybe_unused]] const Reserve& g_reserve_made_early = Reserve::Get();

ErrorRecord* NewRecord() noexcept {
  if (auto* r = new (std::nothrow) ErrorRecord) return r;
  return Reserve::Get().Take();
}

}  // namespace

ErrorRecord* ErrorRecord::NewRoot(const char* op, Site site, std::exception_ptr cause) noexcept {
  ErrorRecord* r = NewRecord();
  if (Reserve::Get().IsShared(r)) return r;
  r->op = op;
  r->site = site;
  r->cause = std::move(cause);
  return r;
}

ErrorRecord* ErrorRecord::NewAskedFor(const char* op, Site site, std::exception_ptr cause) noexcept {
  ErrorRecord* const r = NewRoot(op, site, std::move(cause));
  r->Quieten();
  return r;
}

void ErrorRecord::Quieten() noexcept {
  if (!Reserve::Get().IsShared(this)) quiet = true;  // that one stands for other failures, too
}

void ErrorRecord::ChainTo(ErrorRecord* poison) {
  if (!poison || first) return;
  // The origin of both, so that first errors do not form a chain.
  ErrorRecord* origin = poison->root->first ? poison->root->first : poison->root;
  first = origin->Retain();
}

ErrorRecord* ErrorRecord::Hop(const char* op_name, Site op_site) noexcept {
  if (hops == kMaxHops) return Retain();
  auto* r = new (std::nothrow) ErrorRecord;
  if (!r) return Retain();
  r->root = root->Retain();
  r->before = Retain();
  r->hops = hops + 1;
  r->op = op_name;
  r->site = op_site;
  return r;
}

void ErrorRecord::Release() {
  // acq_rel: whoever drops the last count sees that all other holders have finished reading.
  if (refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (before) before->Release();  // depth is at most kMaxHops
  if (root != this) root->Release();
  if (first) first->Release();
  if (reserved) return Reserve::Get().Return(this);
  delete this;
}

void Throw(ErrorRecord* error) {
  struct Counted {
    ~Counted() { record->Release(); }
    ErrorRecord* record;
  } const counted{error};
  throw error->Show();
}

OpError ErrorRecord::Show() {
  std::vector<OpError::Hop> path;
  for (const ErrorRecord* r = this; r != root; r = r->before) path.push_back({r->op, r->site});
  std::reverse(path.begin(), path.end());
  const bool of_op = *root->op || *root->site.file;  // else the cause is the engine's own, such as a fork
  std::string text = (of_op ? OpAt(root->op, root->site) + " failed: " : "") + DescribeException(root->cause);
  if (const ErrorRecord* f = root->first)
    text += "\n  it ran although " + OpAt(f->op, f->site) + " had failed: " + DescribeException(f->cause);
  for (const auto& hop : path) text += "\n  passed on by " + OpAt(hop.op.c_str(), hop.site);
  if (hops == kMaxHops) text += "\n  (and maybe by further ops)";
  OpError shown(text, root->op, root->site, std::move(path), root->cause);
  // The shared record stands for other failures, too, which nobody has seen.
  if (!Reserve::Get().IsShared(root)) root->seen.store(true, std::memory_order_relaxed);
  return shown;
}

ErrorLedger::ErrorLedger() {
  MutexLock lock(mu_);
  kept_.reserve(kKept);
}

ErrorLedger::~ErrorLedger() {
  MutexLock lock(mu_);
  for (ErrorRecord* r : kept_) r->Release();
}

void ErrorLedger::Add(ErrorRecord* root) noexcept {
  Seen seen;
  MutexLock lock(mu_);
  // The shared record stands for many failures, of all engines.
  if (!Reserve::Get().IsShared(root) && std::exchange(root->noted, true)) return;
  Keep(root, seen);
}

void ErrorLedger::PutBack(ErrorRecord* unseen) noexcept {
  Seen seen;
  MutexLock lock(mu_);
  Keep(unseen, seen);
}

void ErrorLedger::TakeSeen(Seen& seen) noexcept {
  std::erase_if(kept_, [&](ErrorRecord* r) {
    if (!r->seen.load(std::memory_order_relaxed)) return false;
    seen.records[seen.count++] = r;
    return true;
  });
}

void ErrorLedger::Keep(ErrorRecord* root, Seen& seen) noexcept {
  if (kept_.size() >= kKept) TakeSeen(seen);
  if (kept_.size() >= kKept) {
    ++dropped_;
    return;
  }
  kept_.push_back(root->Retain());
}

ErrorRecord* ErrorLedger::TakeUnseen() {
  Seen seen;
  MutexLock lock(mu_);
  TakeSeen(seen);
  if (!kept_.empty()) {
    ErrorRecord* const oldest = kept_.front();
    kept_.erase(kept_.begin());
    return oldest;
  }
  if (dropped_ == 0) return nullptr;
  const std::string text = std::to_string(dropped_) + " further errors that nobody waited for; only " +
                           std::to_string(kKept) + " are kept whole";
  ErrorRecord* const error = ErrorRecord::NewRoot("", {}, std::make_exception_ptr(Error(text)));
  dropped_ = 0;
  return error;
}

uint64_t ErrorLedger::unseen() const {
  MutexLock lock(mu_);
  uint64_t n = dropped_;
  for (const ErrorRecord* r : kept_) n += !r->seen.load(std::memory_order_relaxed);
  return n;
}

}  // namespace engine::detail
