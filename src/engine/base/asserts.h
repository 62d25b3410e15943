// Assertions of a build with ENGINE_ASSERTS=ON: at the grant, the queue, the start and the end of an op, and at every block
// that is given back or taken. Without it each is an empty inline function.
//
// A block that is free holds a pattern, but for the bytes that others may rightly look at (asserts.cc). Whoever reads more
// finds nonsense; whoever writes is found when the block is taken next.
//
// Threads: as what they check.
// Errors:  a failed assertion says what it knows of the op, and aborts.
#pragma once

#include <cstdint>

namespace engine::detail {

enum class BlockKind : uint8_t { kOps, kVars, kCompletions };  // of an arena: what its blocks are
enum class OpState : uint8_t;
struct OpRecord;

// A set of states.
constexpr uint32_t Bit(OpState state) { return 1u << static_cast<uint32_t>(state); }

#ifdef ENGINE_ASSERTS
inline constexpr bool kAsserts = true;
#define ENGINE_ASSERTION(declaration) declaration;
#else
inline constexpr bool kAsserts = false;
#define ENGINE_ASSERTION(declaration) \
  inline declaration {}
#endif
ENGINE_ASSERTION(void PoisonBlock(BlockKind, uint32_t /*cls*/, void*))        // given back
ENGINE_ASSERTION(void CheckPoison(BlockKind, uint32_t /*cls*/, const void*))  // taken: nobody has written into it
ENGINE_ASSERTION(void CheckState(const OpRecord*, uint32_t /*allowed*/, const char* /*moment*/))
ENGINE_ASSERTION(void CheckGrant(const OpRecord*, uint32_t /*grants*/))  // it waits, for no fewer than these
ENGINE_ASSERTION(void CheckPins(const OpRecord*, uint32_t /*pins*/))     // it has no fewer than these
#undef ENGINE_ASSERTION

}  // namespace engine::detail
