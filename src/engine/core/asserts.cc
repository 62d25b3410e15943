#include "base/asserts.h"

#ifdef ENGINE_ASSERTS

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include "core/completion_state.h"
#include "order/op_chain.h"

namespace engine::detail {
namespace {

constexpr auto kPattern = static_cast<std::byte>(0xd5);
constexpr uint32_t kMostPins = 2 * Protocol::kMaxAccesses;

[[noreturn]] void Abort(const char* what, const OpRecord* op) {
  const OpExtra& x = op->extra;
  std::fprintf(
      stderr,
      "engine: assertion failed: %s; op at %p: state %d, wait %u, pins %u, flags %x, class %d, %d Vars, block %s\n",
      what, static_cast<const void*>(op), static_cast<int>(x.state.load()), op->wait.load(), op->pins.load(), x.flags,
      x.size_class, op->n_access,
      op->wait.load() == 0xd5d5d5d5 ? "is free"
      : *x.name                     ? x.name
                                    : "of an unnamed op");
  std::abort();
}

// The bytes of a free block that others may look at: [from, to).
struct Kept {
  size_t from = 0, to = 0;
};
Kept KeptOf(BlockKind kind, uint32_t cls, const void* block) {
  const auto at = [&](const auto& member) {
    const auto from =
        static_cast<size_t>(reinterpret_cast<const std::byte*>(&member) - static_cast<const std::byte*>(block));
    return Kept{from, from + sizeof(member)};
  };
  switch (kind) {
    case BlockKind::kOps:  // walks over all ops look at the state; nobody looks at a free group
      if (cls == kGroupClass) return {};
      return at(static_cast<const OpRecord*>(block)->extra.state);
    case BlockKind::kVars:  // for the walk in a fork's child, and for names in reports
      if (cls == kVarClass) return at(static_cast<const VarCore*>(block)->pusher);
      return {0, BlockBytes(cls)};  // a chain: stale pointers lead to it (op_chain.h)
    case BlockKind::kCompletions: return at(static_cast<const CompletionState*>(block)->refs);
  }
  return {};
}

}  // namespace

void PoisonBlock(BlockKind kind, uint32_t cls, void* block) {
  const Kept kept = KeptOf(kind, cls, block);
  auto* const bytes = static_cast<std::byte*>(block);
  std::fill(bytes, bytes + kept.from, kPattern);
  std::fill(bytes + kept.to, bytes + BlockBytes(cls), kPattern);
}

void CheckPoison(BlockKind kind, uint32_t cls, const void* block) {
  const Kept kept = KeptOf(kind, cls, block);
  const auto* const bytes = static_cast<const std::byte*>(block);
  for (size_t i = 0; i < BlockBytes(cls); ++i) {
    if ((i >= kept.from && i < kept.to) || bytes[i] == kPattern) continue;
    std::fprintf(stderr, "engine: assertion failed: byte %zu of a free block of class %u, kind %d, was written\n", i,
                 cls, static_cast<int>(kind));
    std::abort();
  }
  if (kind == BlockKind::kOps && cls != kGroupClass)
    CheckState(static_cast<const OpRecord*>(block), Bit(OpState::kFree), "a block that is taken belongs to an op");
}

void CheckState(const OpRecord* op, uint32_t allowed, const char* moment) {
  if (!(Bit(op->extra.state.load(std::memory_order_relaxed)) & allowed)) Abort(moment, op);
}

void CheckGrant(const OpRecord* op, uint32_t grants) {
  CheckState(op, Bit(OpState::kWaiting), "a grant to an op that does not wait");
  const uint32_t missing = op->wait.load(std::memory_order_relaxed);
  if (missing < grants || missing > Protocol::kMaxAccesses + 2u) Abort("more grants than are missing", op);
}

void CheckPins(const OpRecord* op, uint32_t pins) {
  const uint32_t left = op->pins.load(std::memory_order_relaxed);
  if (left < pins || left > kMostPins) Abort("more pins dropped than there are", op);
}

void CheckCounts(const OpRecord* op, uint32_t counts) {
  if (counts == 0) Abort("a thread had no count of the run that it leaves", op);
}

}  // namespace engine::detail

#endif
