#include "error_record.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

namespace engine::detail {
namespace {

std::string Quoted(const char* op) { return *op ? "op '" + std::string(op) + "'" : "an unnamed op"; }

}  // namespace

std::string DescribeException(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const std::exception& e) {
    return e.what();
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {
    return text;
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    if (!type) return "an exception of unknown type";
    int status = 0;
    char* name = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
    std::string text = std::string("an exception of type ") + (name ? name : type->name());
    std::free(name);
    return text;
  }
}

ErrorRecord* ErrorRecord::NewRoot(const char* op, Site site, std::exception_ptr cause) {
  auto* r = new ErrorRecord;
  r->op = op;
  r->site = site;
  r->cause = std::move(cause);
  return r;
}

void ErrorRecord::ChainTo(ErrorRecord* poison) {
  if (!poison || first) return;
  ErrorRecord* origin = poison->root->first ? poison->root->first : poison->root;  // so that no chain of roots grows
  first = origin->Retain();
}

ErrorRecord* ErrorRecord::Hop(const char* op_name, Site op_site) {
  if (hops == kMaxHops) return Retain();
  auto* r = new ErrorRecord;
  r->root = root->Retain();
  r->before = Retain();
  r->hops = hops + 1;
  r->op = op_name;
  r->site = op_site;
  return r;
}

void ErrorRecord::Release() {
  // acq_rel: the last one out sees every other holder's reads finished.
  if (refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (before) before->Release();  // depth is at most kMaxHops
  if (root != this) root->Release();
  if (first) first->Release();
  delete this;
}

OpError ErrorRecord::Show() {
  root->seen.store(true, std::memory_order_relaxed);
  std::vector<OpError::Hop> path;
  for (const ErrorRecord* r = this; r != root; r = r->before) path.push_back({r->op, r->site});
  std::reverse(path.begin(), path.end());
  std::string text = Quoted(root->op) + " pushed at " + At(root->site) + " failed: " + DescribeException(root->cause);
  if (const ErrorRecord* f = root->first)
    text += "\n  it ran although " + Quoted(f->op) + " pushed at " + At(f->site) +
            " had failed: " + DescribeException(f->cause);
  for (const auto& hop : path) text += "\n  passed on by " + Quoted(hop.op.c_str()) + " pushed at " + At(hop.site);
  if (hops == kMaxHops) text += "\n  (and maybe by further ops)";
  return OpError(text, root->op, root->site, std::move(path), root->cause);
}

void ErrorLedger::Add(ErrorRecord* root) {
  MutexLock lock(mu_);
  const auto seen = [](ErrorRecord* r) {
    if (!r->seen.load(std::memory_order_relaxed)) return false;
    r->Release();
    return true;
  };
  if (kept_.size() >= kKept) kept_.erase(std::remove_if(kept_.begin(), kept_.end(), seen), kept_.end());
  if (kept_.size() >= kKept) {
    ++dropped_;
    return;
  }
  kept_.push_back(root->Retain());
}

ErrorRecord* ErrorLedger::TakeUnseen() {
  MutexLock lock(mu_);
  while (!kept_.empty()) {
    ErrorRecord* r = kept_.front();
    kept_.erase(kept_.begin());
    if (!r->seen.load(std::memory_order_relaxed)) return r;
    r->Release();
  }
  if (dropped_ == 0) return nullptr;
  const std::string text = std::to_string(std::exchange(dropped_, 0)) +
                           " further errors that nobody waited for; only " + std::to_string(kKept) + " are kept whole";
  return ErrorRecord::NewRoot("", {}, std::make_exception_ptr(Error(text)));
}

uint64_t ErrorLedger::unseen() const {
  MutexLock lock(mu_);
  uint64_t n = dropped_;
  for (const ErrorRecord* r : kept_) n += !r->seen.load(std::memory_order_relaxed);
  return n;
}

}  // namespace engine::detail
