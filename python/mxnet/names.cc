#include "names.h"

#include <cstdint>
#include <cstring>

#include "here.h"

namespace engine_mxnet {

::engine::Name KnownNameOf(const char* text) {
  Here& here = t_here;
  if (!here.names) [[unlikely]] {
    if (here.ending) return ::engine::Name::Intern(text);
    Here::Keep();
    here.names = new KnownName[kKnownNames];
  }
  const auto address = reinterpret_cast<uintptr_t>(text);
  KnownName& known = here.names[(address >> 3 ^ address >> 11) % kKnownNames];
  if (known.text != text || std::strcmp(known.name.c_str(), text) != 0) [[unlikely]]
    known = {text, ::engine::Name::Intern(text)};
  return known.name;
}

}  // namespace engine_mxnet
