#include "target.h"

namespace engine::perf {
std::unique_ptr<RawAllReduce> MakeRawAllReduce(Target&, std::string* why) {
  *why = "built without NCCL: no nccl.h or libnccl was found, or no CUDA toolkit";
  return nullptr;
}
}  // namespace engine::perf
