// The NCCL backend of a build without NCCL.
#include "comm/backend.h"

namespace engine::detail {
namespace {
[[noreturn]] void Missing() {
  throw CommunicatorError(
      "this build has no NCCL, which communicators on cuda devices need: it was configured without a CUDA toolkit, or "
      "with -DENGINE_NCCL=OFF");
}
}  // namespace

std::unique_ptr<CommBackend> MakeNcclBackend(const Membership&) { Missing(); }
CommunicatorId NewNcclId() { Missing(); }

}  // namespace engine::detail
