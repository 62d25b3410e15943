// What a Bulk keeps out of its public header.
#pragma once

#include "engine/bulk.h"
#include "idle_bulks.h"

namespace engine {

struct Bulk::State : bulk::Watched {
  using Watched::Watched;
  bulk::IdleBulks* idle_bulks = nullptr;  // the one that watches this bulk; a new one after a fork
};

}  // namespace engine
