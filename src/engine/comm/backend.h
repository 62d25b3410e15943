// CommBackend: one rank of a communicator as a library knows it. nccl.cc or no_nccl.cc, and loopback.cc.
//
// Threads:   Join and Issue on the communicator's own thread, in bodies of its ops: they may take as long as the peers do,
//            and end soon after Abort. The others on any thread, and block for nobody; Leave by one at a time, once nothing is pending.
// Errors:    Join and Issue throw CommunicatorError; the communicator then fails for good.
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
  // All calls as one group on the op's stream. They have been checked by themselves: peers, roots, counts, null pointers.
  virtual void Issue(RunContext& ctx, std::span<const Collective> group) = 0;
  virtual std::string AsyncError() noexcept = 0;  // empty: none is known
  // What was issued ends soon, and so do calls in progress. Calls that come later throw.
  virtual void Abort(const std::string& why) noexcept = 0;
  // False: it leaves when the other ranks do, and is to be asked again until then.
  virtual bool Leave() noexcept = 0;
};

struct Membership {
  CommunicatorOptions options;
  std::chrono::nanoseconds leave_within;  // less than the engine's drain_timeout, which would fail the op that leaves
};
// Throw CommunicatorError where the library is missing.
std::unique_ptr<CommBackend> MakeNcclBackend(const Membership& membership);
CommunicatorId NewNcclId();
std::unique_ptr<CommBackend> MakeLoopbackBackend(const Membership& membership, Device& device);
CommunicatorId NewLoopbackId();

}  // namespace engine::detail
