// CommBackend: one rank of a communicator in its library. nccl.cc or no_nccl.cc, and loopback.cc.
//
// Threads:   Join and Issue run on the communicator's own thread, in bodies of its ops: they may take as long as the
//            other ranks do, and return soon after Abort. Any thread may call the others, which do not block; Leave is
//            called by one thread at a time, when nothing is pending.
// Errors:    Join and Issue throw CommunicatorError; the communicator then fails for good. Abort and Leave need no memory.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/comm.h"

namespace engine::detail {

class CommBackend {
 public:
  virtual ~CommBackend() = default;
  virtual void Join() = 0;
  // Issues all calls as one group on the op's stream. Each call has been checked by itself: peers, roots, counts, null
  // pointers.
  virtual void Issue(RunContext& ctx, std::span<const Collective> group) = 0;
  virtual std::string AsyncError() = 0;  // empty: no error is known; bad_alloc
  // What was issued ends soon, and so do calls in progress. Later calls throw. `why` is not empty.
  virtual void Abort(const std::string& why) noexcept = 0;
  // False: the rank leaves when the other ranks do; call again until it returns true.
  virtual bool Leave() noexcept = 0;
};

struct Membership {
  CommunicatorOptions options;
  // Less than the engine's drain_timeout, after which the op that leaves would fail.
  std::chrono::nanoseconds leave_within;
};
// These throw CommunicatorError if the library is missing.
std::unique_ptr<CommBackend> MakeNcclBackend(const Membership& membership);
CommunicatorId NewNcclId();
std::unique_ptr<CommBackend> MakeLoopbackBackend(const Membership& membership, Device& device);
CommunicatorId NewLoopbackId();

}  // namespace engine::detail
