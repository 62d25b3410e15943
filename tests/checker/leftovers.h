// What may be left when all ops have ended: a group of readers, all gone, that hangs on an idle Var; where a push was
// refused, a finished write that hangs there because its completer met the tail locked. A deleted Var keeps the address of
// its deletion, where nobody goes.
#pragma once

#include <array>

#include "arena.h"

namespace checker {

template <class D>
const char* CheckLeftovers(const Arena<D>& arena) {
  const Model& model = arena.model();
  std::array<uint32_t, kMaxOps> hanging_writes{};
  std::array<bool, kMaxGroups> hanging_group{};
  for (int i = 0; i < arena.vars(); ++i) {
    const auto& var = *arena.var(i);
    if (var.settled.peek() != var.pushed.peek()) return "settled != pushed at the end";
    if (var.settled.peek() != model.rules.var[i].version) return "settled is not the number of writes at the end";
    const uintptr_t tail = var.tail.peek();
    if (tail == 0) continue;
    if (tail == D::kLocked) return "a tail stayed locked";
    const Place place = arena.Find(reinterpret_cast<const void*>(tail & ~D::kBits));
    if (model.rules.var[i].deleted) {
      if (place.kind != Kind::kBlock || (tail & D::kBits)) return "the tail of a deleted Var is not its deletion";
    } else if (tail & D::kGroup) {
      if (place.kind != Kind::kGroup || !model.groups.taken(place.index)) return "a tail leads to a freed group";
      const auto& group = *arena.group(place.index);
      if (group.waiters.peek() != D::kGranted) return "a group at rest was never granted";
      if (var.entered == 0 || group.count.peek() != -static_cast<int64_t>(var.entered))
        return "a group at rest has readers that did not leave";
      hanging_group[place.index] = true;
    } else {
      if (place.kind != Kind::kBlock || !model.blocks.taken(place.index)) return "a tail leads to a freed op";
      const auto& access = *reinterpret_cast<const typename D::Access*>(tail & ~D::kBits);
      if (access.link.peek() != D::kDone || access.var != arena.var(i)) return "a tail leads to an unfinished write";
      if (!model.any_refused) return "a finished write hangs on its Var";
      ++hanging_writes[place.index];
    }
  }
  for (int i = 0; i < arena.blocks(); ++i) {
    const uint32_t expected = hanging_writes[i];
    if (model.blocks.taken(i) != (expected != 0)) return "an op's block leaked";
    if (expected && arena.block(i)->pins.peek() != expected) return "a hanging write has the wrong number of pins";
  }
  for (int i = 0; i < arena.groups(); ++i)
    if (model.groups.taken(i) != hanging_group[i]) return "a group leaked";
  return nullptr;
}

}  // namespace checker
