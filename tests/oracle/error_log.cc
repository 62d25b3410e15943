#include "error_log.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/comm.h"

namespace engine::oracle {

namespace {

// What a shutdown makes of collectives: World::CollectivesMain aborts them, and so does NewCommunicators whose second rank came too late.
bool OfShutdown(const Error& cause) {
  return strstr(cause.what(), "the engine is shut down") ||
         strstr(cause.what(), "could not be made: push after shutdown");
}

}  // namespace

int64_t ErrorLog::RootOf(const OpError& error) {
  try {
    error.RethrowCause();
  } catch (const PlannedFailure& failure) {
    return failure.root;
  } catch (const CompletionError& e) {
    if (strstr(e.what(), "twice") || strstr(e.what(), "after it had completed")) return kSecondCall;
  } catch (const CancelledError&) {  // the engine's own causes; the op's name says whose they are
  } catch (const ShutdownError&) {
  } catch (const HookFailure&) {
    return kOther;
  } catch (const NullWhat&) {
  } catch (const std::nullptr_t&) {
  } catch (const char*) {
  } catch (const std::bad_alloc&) {
    if (!refusals_) Complain("bad_alloc in %s", error.op().c_str());
  } catch (const CommunicatorError& e) {
    if (!failing_collectives_ && !OfShutdown(e)) Complain("an unknown cause: %s", e.what());
    return kOther;
  } catch (const Error& e) {
    if (strstr(e.what(), "further errors")) {
      further_.fetch_add(strtoull(e.what(), nullptr, 10), std::memory_order_relaxed);
      return kFurther;
    }
    const bool refused = refusals_ && strstr(e.what(), "the system refused");
    if (!refused && !OfShutdown(e)) Complain("an unknown cause: %s", e.what());
    if (!refused) return kOther;
  } catch (const std::exception& e) {
    Complain("an unknown cause: %s", e.what());
    return kOther;
  }
  if (error.op() == kOpenOverFork) return kOther;  // a shutdown came first
  for (const char* on_device : {kKernelOverFork, kBulkOverFork, kHeldOpOverFork})
    if (refusals_ && error.op() == on_device) return kOther;
  if (error.op()[0] == 'o') return strtoll(error.op().c_str() + 1, nullptr, 10);
  Complain("a cause without a root, of %s: %s", error.op().c_str(), error.what());
  return kOther;
}

int64_t ErrorLog::Shown(const OpError& error) {
  const int64_t root = RootOf(error);
  if (root == kSecondCall) second_calls_.fetch_add(1, std::memory_order_relaxed);
  if (root >= 0) {
    std::lock_guard lock(mu_);
    shown_.insert(static_cast<uint32_t>(root));
  }
  return root;
}

void ErrorLog::Reported(const OpError& error) {
  if (const Gone gone = gone_; gone != Gone::kNo) {
    if (gone == Gone::kComplain) Complain("reported after the engine's end: %s", error.what());
    return;
  }
  const int64_t root = Shown(error);
  if (root < 0) return;
  bool first;
  {
    std::lock_guard lock(mu_);
    first = reported_.insert(static_cast<uint32_t>(root)).second;
  }
  if (!first) Complain("root %u was reported twice by WaitAll or on_unobserved", static_cast<uint32_t>(root));
}

void ErrorLog::Complain(const char* format, ...) {
  constexpr size_t kMostShown = 4000;
  char text[600];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::lock_guard lock(mu_);
  if (complaints_.size() < kMostShown) complaints_ += std::string("  ") + text + "\n";
}

std::string ErrorLog::complaints() const {
  std::lock_guard lock(mu_);
  return complaints_;
}

void ErrorLog::FillIn(History* history) const {
  std::lock_guard lock(mu_);
  history->shown = shown_;
  history->further = further_;
  history->second_calls_shown = second_calls_;
}

}  // namespace engine::oracle
