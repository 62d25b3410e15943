// The clock that ends silent bulks, stopped for tests in C that count what bulks do.
#include <memory>

#include "engine/testing/bulk_clock.h"

namespace {
std::unique_ptr<engine::ManualBulkClock> bulk_clock;
}  // namespace

extern "C" void StopBulkClock(void) { bulk_clock = std::make_unique<engine::ManualBulkClock>(); }
extern "C" void StartBulkClock(void) { bulk_clock.reset(); }
