// What a Bulk keeps out of its public header.
#pragma once

#include "engine/bulk.h"
#include "silence.h"

namespace engine {

struct Bulk::State : bulk::Watched {
  using Watched::Watched;
  bulk::Silence* silence = nullptr;  // the one that watches this bulk; a new one after a fork
};

}  // namespace engine
