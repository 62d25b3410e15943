// Names: the engine's names of MXNet's ops.
//
// MXNet gives text that lives as long as the call, mostly the same text at the same address. A name is interned once; a small
// table of the thread finds it again by the address, and looks whether the text is still the same.
//
// Threads: any. Errors: none.
#pragma once

#include "engine/op.h"

namespace engine_mxnet {

::engine::Name KnownNameOf(const char* text);

// The name for `text`; null and empty text become `otherwise`.
inline ::engine::Name NameOf(const char* text, ::engine::Name otherwise) {
  return text && *text ? KnownNameOf(text) : otherwise;
}

}  // namespace engine_mxnet
