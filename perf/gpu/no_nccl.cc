#include "target.h"

namespace engine::perf {
std::unique_ptr<RawAllReduce> MakeRawAllReduce(Target&, std::string* why) {
  *why = "built without NCCL: there was no CUDA toolkit, or ENGINE_NCCL was OFF";
  return nullptr;
}
}  // namespace engine::perf
