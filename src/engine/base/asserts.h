// Assertions of a build with ENGINE_ASSERTS=ON: when an op is granted, queued, started and ended, and when a block is
// given back or taken. In other builds each is an empty inline function.
//
// A free block holds a pattern, except in the bytes at which others may look (asserts.cc). Whoever reads more finds
// nonsense; a write into a free block is found when the block is taken next.
//
// Threads: as what they check.
// Errors:  a failed assertion prints what it knows of the op, and aborts.
#pragma once

#include <cstdint>

namespace engine::detail {

enum class BlockKind : uint8_t { kOps, kVars, kCompletions };  // what the blocks of an arena are
enum class OpState : uint8_t;
struct OpRecord;

// A set of states has a bit for each state.
constexpr uint32_t Bit(OpState state) { return 1u << static_cast<uint32_t>(state); }

#ifdef ENGINE_ASSERTS
inline constexpr bool kAsserts = true;
#define ENGINE_ASSERTION(declaration) declaration;
#else
inline constexpr bool kAsserts = false;
#define ENGINE_ASSERTION(declaration) \
  inline declaration {}
#endif
ENGINE_ASSERTION(void PoisonBlock(BlockKind, uint32_t /*cls*/, void*))  // called when a block is given back
ENGINE_ASSERTION(void CheckPoison(BlockKind, uint32_t /*cls*/,
                                  const void*))  // when a block is taken: it was not written
ENGINE_ASSERTION(void CheckState(const OpRecord*, uint32_t /*allowed*/, const char* /*moment*/))
ENGINE_ASSERTION(void CheckGrant(const OpRecord*, uint32_t /*grants*/))  // the op waits for at least this many grants
ENGINE_ASSERTION(void CheckPins(const OpRecord*, uint32_t /*pins*/))     // the op has at least this many pins
// Whoever leaves a run had a count of it until now, else the run might be over.
ENGINE_ASSERTION(void CheckCounts(const OpRecord*, uint32_t /*counts*/))
#undef ENGINE_ASSERTION

}  // namespace engine::detail
