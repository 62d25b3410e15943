// Names: what words and values of an arena are called in a trace: `x.tail`, `op2.y.link`, `group0.count`.
#pragma once

#include <string>

#include "arena.h"

namespace checker {

// Who owned each block when an event happened; 4 bits a block.
inline uint64_t OwnersOf(const Model& model) {
  uint64_t owners = 0;
  for (int i = 0; i < kMaxOps; ++i) owners |= static_cast<uint64_t>(model.blocks.owner(i) + 1) << (4 * i);
  return owners;
}

template <class D>
class Names {
 public:
  Names(const Arena<D>& arena, const Scenario& scenario) : arena_(arena), scenario_(scenario) {}

  std::string Word(const Event& e) const {
    const Place place = arena_.Find(e.where);
    switch (place.kind) {
      case Kind::kTail: return Var(place.index) + ".tail";
      case Kind::kPushed: return Var(place.index) + ".pushed";
      case Kind::kDeleted: return Var(place.index) + ".deleted";
      case Kind::kSettled: return Var(place.index) + ".settled";
      case Kind::kGroup: return Group(place.index) + (IsCount(e.where, place.index) ? ".count" : ".waiters");
      case Kind::kBlock: return Block(e, place.index) + BlockField(e, place.index);
      default: return "poison";
    }
  }

  std::string Value(const Event& e, uint64_t value) const {
    const Place place = arena_.Find(e.where);
    if (place.kind == Kind::kTail) return value == D::kLocked ? "locked" : value == 0 ? "idle" : Pointer(e, value);
    if (place.kind == Kind::kGroup && !IsCount(e.where, place.index))
      return value == D::kGranted ? "granted" : value == 0 ? "nobody" : Pointer(e, value);
    if (place.kind == Kind::kBlock && !IsOpWord(e.where, place.index))
      return value == D::kDone ? "done" : value == 0 ? "nobody" : Pointer(e, value);
    return std::to_string(static_cast<int64_t>(value));
  }

  std::string Op(uint64_t id) const { return "op" + std::to_string(id) + " [" + scenario_.ops[id].text + "]"; }

 private:
  static std::string Var(int i) { return std::string(1, VarName(i)); }
  static std::string Group(int i) { return "group" + std::to_string(i); }
  bool IsCount(const void* word, int group) const { return word == arena_.group(group)->count.word(); }
  bool IsOpWord(const void* word, int block) const {
    return word == arena_.block(block)->wait.word() || word == arena_.block(block)->pins.word();
  }
  static int Owner(const Event& e, int block) { return static_cast<int>(e.tag >> (4 * block) & 15) - 1; }
  std::string Block(const Event& e, int block) const {
    const int owner = Owner(e, block);
    return owner < 0 ? "freed block" + std::to_string(block) : "op" + std::to_string(owner);
  }
  std::string BlockField(const Event& e, int block) const {
    auto* const op = arena_.block(block);
    if (e.where == op->wait.word()) return ".wait";
    if (e.where == op->pins.word()) return ".pins";
    return AccessName(e, block, e.where) + ".link";
  }
  std::string AccessName(const Event& e, int block, const void* p) const {
    const auto i = static_cast<size_t>(static_cast<const typename D::Access*>(p) - arena_.block(block)->accesses());
    const int owner = Owner(e, block);
    if (owner < 0 || i >= scenario_.ops[owner].accesses.size()) return ".access" + std::to_string(i);
    return "." + Var(scenario_.ops[owner].accesses[i].var);
  }
  std::string Pointer(const Event& e, uint64_t value) const {
    const void* const p = reinterpret_cast<const void*>(value & ~uint64_t{D::kBits});
    const Place place = arena_.Find(p);
    if (place.kind == Kind::kGroup) return Group(place.index) + (value & D::kOpen ? " open" : "");
    if (place.kind == Kind::kBlock && p == arena_.block(place.index)) return Block(e, place.index);
    if (place.kind == Kind::kBlock) return Block(e, place.index) + AccessName(e, place.index, p);
    return place.kind == Kind::kPoison ? "poison" : "a wild pointer";
  }

  const Arena<D>& arena_;
  const Scenario& scenario_;
};

}  // namespace checker
