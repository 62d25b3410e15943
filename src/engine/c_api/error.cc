// Errors in the C API: how exceptions become statuses, and what a thread remembers of the last one.
#include <cstdlib>
#include <new>

#include "base/per_thread.h"
#include "c_api/internal.h"
#include "order/error_record.h"

namespace engine::capi {
namespace {

constexpr const char* kNoMemory = "out of memory";

struct Cause {
  EngineStatus status;
  int32_t code;
  std::string text;
};

// Called in a catch block: says what the current exception is.
Cause ClassifyCurrent() {
  try {
    throw;
  } catch (const BodyError& e) {
    return {ENGINE_E_BODY, e.code(), detail::TextOf(e)};
  } catch (const IoError& e) {
    return {ENGINE_E_IO, 0, detail::TextOf(e)};
  } catch (const Error& e) {
#define ENGINE_CLASSIFY(Class, STATUS, ...) \
  if (dynamic_cast<const Class*>(&e)) return {ENGINE_E_##STATUS, 0, detail::TextOf(e)};
    ENGINE_ERRORS(ENGINE_CLASSIFY)
#undef ENGINE_CLASSIFY
    return {ENGINE_E_EXCEPTION, 0, detail::TextOf(e)};
  } catch (const std::bad_alloc&) {
    return {ENGINE_E_NOMEM, 0, kNoMemory};
  } catch (...) {
    return {ENGINE_E_EXCEPTION, 0, detail::DescribeException(std::current_exception())};
  }
}

Cause ClassifyCause(const std::exception_ptr& cause) {
  if (!cause) return {ENGINE_E_EXCEPTION, 0, "unknown"};
  try {
    std::rethrow_exception(cause);
  } catch (...) {
    return ClassifyCurrent();
  }
}

struct LastError {
  std::string text;
  const char* fallback = nullptr;  // used instead of `text` if there was no memory for that
  std::optional<OpErrorText> op;
};

struct CachedName {
  const char* text = nullptr;
  Name name;
};
constexpr size_t kCachedNames = 64;

// What the C API keeps for a thread. It is on the heap, because the library's static TLS must stay small: otherwise the
// library could not be loaded into a running program.
struct ThreadState {
  LastError last;
  std::array<CachedName, kCachedNames> names;
};

ThreadState& ThisThreads() { return detail::PerThread<ThreadState>::Get(); }

// Null if there is no memory for it.
LastError* ThisThreadsLast() noexcept {
  try {
    return &ThisThreads().last;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

EngineStatus Keep(LastError& last, const char* function) {
  last.op.reset();
  last.fallback = nullptr;
  try {
    throw;
  } catch (const OpError& e) {
    last.op.emplace(e);
  } catch (...) {
  }
  Cause cause = ClassifyCurrent();
  const bool name_it = cause.status == ENGINE_E_USAGE || cause.status == ENGINE_E_IO;
  last.text = name_it ? std::string(function) + ": " + cause.text : std::move(cause.text);
  return cause.status;
}

}  // namespace

BodyError::BodyError(int32_t code, const std::string& message)
    : Error(message.empty() ? "status " + std::to_string(code) : message), code_(code) {}

OpErrorText::OpErrorText(const OpError& error) : text_(detail::TextOf(error)), op_(error.op()), path_(error.path()) {
  Cause cause = ClassifyCause(error.cause());
  cause_text_ = std::move(cause.text);
  hops_.reserve(path_.size());
  for (const OpError::Hop& hop : path_) hops_.push_back({hop.op.c_str(), ToC(hop.site)});
  view_ = {.struct_size = sizeof(EngineOpError),
           .text = text_.c_str(),
           .op = op_.c_str(),
           .site = ToC(error.site()),
           .cause = cause.status,
           .code = cause.code,
           .cause_text = cause_text_.c_str(),
           .hops = hops_.data(),
           .num_hops = static_cast<int32_t>(hops_.size())};
}

EngineStatus KeepCurrentException(const char* function) noexcept {
  LastError* last = ThisThreadsLast();
  try {
    return last ? Keep(*last, function) : ENGINE_E_NOMEM;
  } catch (...) {  // there was no memory
    last->op.reset();
    last->fallback = kNoMemory;
    return ENGINE_E_NOMEM;
  }
}

void RefuseNull(const char* what) { throw UsageError(std::string(what) + " is null"); }

void RefuseCount(int64_t count, const char* what) {
  if (count < 0)
    throw UsageError("the number of " + std::string(what) + " is " + std::to_string(count) +
                     "; it may not be negative");
  throw UsageError("the array of " + std::to_string(count) + " " + what + " is null; pass the array, or a count of 0");
}

void RefuseHandle(const void* handle, const char* kind) { throw UsageError(WhyRefused(handle, kind)); }

std::string WhyRefused(const void* handle, const char* kind) {
  std::string text = std::string("the ") + kind;
  return handle ? text + " handle is not live: it was freed, or never was one" : text + " handle is null";
}

Name InternText(const char* text) {
  if (!text || !*text) return {};
  const auto address = reinterpret_cast<uintptr_t>(text);
  CachedName& entry = ThisThreads().names[(address ^ address >> 6) % kCachedNames];
  // The same address is not enough: the caller may have put another text there.
  if (entry.text != text || std::strcmp(entry.name.c_str(), text) != 0) entry = {text, Name::Intern(text)};
  return entry.name;
}

char* NewText(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (!copy) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace engine::capi

const char* EngineGetLastError(void) {
  const auto* last = engine::capi::ThisThreadsLast();
  if (!last) return engine::capi::kNoMemory;
  return last->fallback ? last->fallback : last->text.c_str();
}

const EngineOpError* EngineGetLastOpError(void) {
  const auto* last = engine::capi::ThisThreadsLast();
  return last && last->op ? last->op->view() : nullptr;
}

const char* EngineStatusName(EngineStatus status) {
  switch (status) {
#define ENGINE_NAME_STATUS(name) \
  case name: return #name;
#define ENGINE_NAME_ERROR(Class, STATUS, ...) ENGINE_NAME_STATUS(ENGINE_E_##STATUS)
    ENGINE_NAME_STATUS(ENGINE_OK)
    ENGINE_NAME_STATUS(ENGINE_TIMEOUT)
    ENGINE_NAME_STATUS(ENGINE_WOULD_BLOCK)
    ENGINE_NAME_STATUS(ENGINE_E_NOMEM)
    ENGINE_NAME_STATUS(ENGINE_E_IO)
    ENGINE_NAME_STATUS(ENGINE_E_BODY)
    ENGINE_NAME_STATUS(ENGINE_E_EXCEPTION)
    ENGINE_ERRORS(ENGINE_NAME_ERROR)
#undef ENGINE_NAME_ERROR
#undef ENGINE_NAME_STATUS
    default: return "unknown status";
  }
}

void EngineStringFree(char* text) { std::free(text); }
