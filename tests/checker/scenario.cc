#include "scenario.h"

#include <algorithm>
#include <stdexcept>

namespace checker {

namespace {

using engine::AccessMode;

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    std::string_view part = text.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    if (!part.empty()) parts.push_back(part);
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

[[noreturn]] void Refuse(std::string_view text) {
  throw std::invalid_argument("scenario: cannot read '" + std::string(text) + "'");
}

int ParseVar(std::string_view text) {
  if (text.size() != 1 || text[0] < 'x' || text[0] >= 'x' + kMaxVars) Refuse(text);
  return text[0] - 'x';
}

AccessSpec ParseAccess(std::string_view text) {
  const size_t mode = std::string_view("RUW").find(text[0]);
  if (mode == std::string_view::npos) Refuse(text);
  return {ParseVar(text.substr(1)), static_cast<AccessMode>(mode)};
}

OpSpec ParseOp(std::string_view text) {
  OpSpec op;
  op.text = text;
  for (size_t colon; (colon = text.find(':')) != text.npos; text.remove_prefix(colon + 1)) {
    const std::string_view word = text.substr(0, colon);
    if (word == "del") {
      op.deletes = true;
    } else if (word == "held") {
      op.held = true;
    } else if (word == "bulk") {
      op.bulk = true;
    } else if (word == "async") {
      op.async = true;
    } else if (word == "keep") {
      op.keeps_version = true;
    } else if (word == "parts") {
      op.parts = true;
    } else if (word == "unpinned") {
      op.unpinned = true;
    } else if (word == "twice") {
      op.twice = true;
    } else if (word == "here") {
      op.here = true;
    } else if (word == "inner") {
      op.inner = true;
    } else if (word == "with") {
      op.with = true;
    } else if (word == "early") {
      op.early = op.held = true;
    } else {
      Refuse(text);
    }
  }
  if (text == "none") return op;
  for (const std::string_view access : Split(text, ' ')) op.accesses.push_back(ParseAccess(access));
  std::sort(op.accesses.begin(), op.accesses.end(), [](auto& a, auto& b) { return a.var < b.var; });
  return op;
}

}  // namespace

const AccessSpec* OpSpec::Find(int var) const {
  for (const AccessSpec& access : accesses)
    if (access.var == var) return &access;
  return nullptr;
}

bool ConflictOn(int var, const OpSpec& a, const OpSpec& b) {
  const AccessSpec* const in_a = a.Find(var);
  const AccessSpec* const in_b = b.Find(var);
  return in_a && in_b && !(in_a->read() && in_b->read());
}

bool Conflict(const OpSpec& a, const OpSpec& b) {
  for (int var = 0; var < kMaxVars; ++var)
    if (ConflictOn(var, a, b)) return true;
  return false;
}

int Scenario::FirstOf(int op) const {
  while (ops[static_cast<size_t>(op)].with) --op;
  return op;
}
int Scenario::LastOf(int op) const {
  while (static_cast<size_t>(op) + 1 < ops.size() && ops[static_cast<size_t>(op) + 1].with) ++op;
  return op;
}

Scenario::Scenario(std::string_view described) : text(described) {
  for (const std::string_view thread : Split(described, '|')) {
    std::vector<Item>& items = pushers.emplace_back();
    for (const std::string_view item : Split(thread, ',')) {
      constexpr std::string_view kSettled = "settled:";
      if (item.starts_with(kSettled)) {
        items.push_back({Item::kLookSettled, ParseVar(item.substr(kSettled.size()))});
        vars = std::max(vars, items.back().index + 1);
        looks_settled = true;
        continue;
      }
      OpSpec& op = ops.emplace_back(ParseOp(item));
      if ((op.inner || op.with) && items.empty()) Refuse(item);
      if (!op.inner && !op.with) items.push_back({Item::kPush, static_cast<int>(ops.size()) - 1});
      op.pusher = static_cast<int>(pushers.size()) - 1;
      most_accesses = std::max(most_accesses, op.accesses.size());
      for (const AccessSpec& access : op.accesses) {
        vars = std::max(vars, access.var + 1);
        reads += access.read();
      }
    }
  }
  if (ops.size() > kMaxOps || pushers.size() > kMaxPushers) Refuse(described);
}

}  // namespace checker
