// WatchSyncs: reports to BodyScope each call of CUDA by which a thread of this process blocks on a device.
// cupti.cc does it with CUPTI's callbacks; no_cupti.cc is for builds without CUPTI's headers.
//
// Threads: any. Errors: none; without a watch the checks that are left say so.
#pragma once

#include <string>

namespace engine::detail {

// Empty: calls are watched from now on until the process ends. Otherwise it says why they are not.
std::string WatchSyncs();

}  // namespace engine::detail
