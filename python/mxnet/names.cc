#include "names.h"

#include <cstdint>
#include <cstring>

namespace engine_mxnet {
namespace {

struct Known {
  const char* text = nullptr;
  ::engine::Name name;
};
constexpr size_t kKnown = 256;  // MXNet has some 500 operators, of which a program uses a few dozen
thread_local constinit Known t_known[kKnown];

}  // namespace

::engine::Name NameOf(const char* text, ::engine::Name otherwise) {
  if (!text || !*text) return otherwise;
  const auto address = reinterpret_cast<uintptr_t>(text);
  Known& known = t_known[(address >> 3 ^ address >> 11) % kKnown];
  if (known.text != text || std::strcmp(known.name.c_str(), text) != 0) known = {text, ::engine::Name::Intern(text)};
  return known.name;
}

}  // namespace engine_mxnet
