// Names: enumerations whose values Python gives by name. Their enumerators count from 0; `last` is the largest one
// allowed.
#pragma once

#include <string>

#include "failure.h"

namespace engine_python {

template <class Enum, class NameOf>
std::string NamesUpTo(Enum last, NameOf&& name_of) {
  std::string names;
  for (int i = 0; i <= static_cast<int>(last); ++i)
    names += (i ? ", " : "") + std::string(name_of(static_cast<Enum>(i)));
  return names;
}

// The enumerator with that name; the UsageError for another name lists the names.
template <class Enum, class NameOf>
Enum ByName(const std::string& name, Enum last, NameOf&& name_of, const std::string& what) {
  for (int i = 0; i <= static_cast<int>(last); ++i)
    if (name == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  RaiseError("UsageError", what + " is '" + name + "'; " + NamesUpTo(last, name_of) + " are allowed");
}

}  // namespace engine_python
