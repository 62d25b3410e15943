// The NCCL backend of a build without NCCL.
#include "comm/backend.h"

namespace engine::detail {
namespace {
[[noreturn]] void Missing() {
  throw CommunicatorError(
      "this build has no NCCL, which communicators on cuda devices need: nccl.h or libnccl was not found, or there is "
      "no "
      "CUDA toolkit (install it, or name its folder, and configure with -DENGINE_NCCL=ON -DNCCL_ROOT=FOLDER)");
}
}  // namespace

std::unique_ptr<CommBackend> MakeNcclBackend(const Membership&) { Missing(); }
CommunicatorId NewNcclId() { Missing(); }

}  // namespace engine::detail
