// What a Bulk keeps behind its public face.
#pragma once

#include "engine/bulk.h"
#include "silence.h"

namespace engine {

struct Bulk::State : bulk::Watched {
  using Watched::Watched;
  bulk::Silence* silence = nullptr;  // that watches us; another one after a fork
};

}  // namespace engine
