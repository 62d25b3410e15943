// A build without CUPTI's headers.
#include "device/cuda/cupti.h"

namespace engine::detail {

std::string WatchSyncs() { return "this build has no CUPTI: its header cupti.h was not found beside the CUDA toolkit"; }

}  // namespace engine::detail
