// WatchSyncs: has BodyScope told of each call of CUDA by which a thread of this process blocks on a device.
// cupti.cc does it with CUPTI's callbacks; no_cupti.cc is for builds without CUPTI's headers.
//
// Threads: any. Errors: none; without a watch the checks that are left say so.
#pragma once

#include <string>

namespace engine::detail {

// Empty: they are watched, from the first call on until the process ends. Else why they are not.
std::string WatchSyncs();

}  // namespace engine::detail
