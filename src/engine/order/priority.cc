#include "order/priority.h"

#include "order/error_record.h"

namespace engine::detail {

void RefusePriority(int priority, const char* op, Site site) {
  throw UsageError(OpAt(op, site) + ": priority is " + std::to_string(priority) + "; allowed: " +
                   std::to_string(kMinPriority) + " (last) to " + std::to_string(kMaxPriority) + " (first)");
}

}  // namespace engine::detail
