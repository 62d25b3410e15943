// DeviceLane: one stream, what was issued on it, and what of that is known to have ended.
//
// Every op on the lane gets the next number. The device keeps the order of the numbers up to `issued`. The numbers up
// to `retired` have ended, and the host knows it. Between the two there are records: a record is an event, the newest
// number that is in front of it, and the lane's clock at that moment. The clock says, for each lane, up to which number
// the work in front of the record has waited. A lane that must come behind a number of another lane waits for the
// earliest record that covers the number, unless its own clock shows that it has waited for it already.
//
// A record costs about as much as a launch, so the engine makes one only where somebody uses it:
//   at once                 an op is issued, and ops wait for it that will not run on this lane
//   on demand               somebody comes later, and no record covers the number that is needed
//   when nothing is to do   the issuer has run out of ops, so the record delays nobody
//   each kOpsARecord ops    whoever comes later then waits for few ops more than necessary
// A chain of ops that is issued as one dispatch has its record at its end. Each copy and each collective has one: these
// are few and long.
//
// Threads:   one thread at a time issues ops. Any thread may do the rest under `mu`: record on demand, poll, wait.
// Ownership: the Devices own lanes and events. An issued op is pinned here until it retires.
// Order:     `mu` of two lanes is taken at once only as (waiting lane, lane waited for). Two threads cannot do that in
//            opposite order, because only its issuer locks a lane as the waiting one (see Order in issue.cc).
// Errors:    a lane of a lost device issues nothing more. The numbers beyond `good` have failed, and so have those in
//            `failed`.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "device/lane_records.h"
#include "engine/device/device.h"

namespace engine::detail {

struct ErrorRecord;
struct OpRecord;
struct DeviceState;

struct DeviceLane {
  DeviceState* device = nullptr;
  uint32_t id = 0;
  Name name;  // "gpu0/1", "gpu0/copy_in"; interned, because a Trace may outlive the engine
  enum class Use : uint8_t {
    kShared,   // takes ops that ask for no lane, too
    kAsked,    // takes only ops that ask for it
    kCopies,   // takes copies: few and long
    kChannel,  // takes collectives: few and long, and other ranks may make them fail
  } use = Use::kShared;
  Stream stream;
  const char* bulk = nullptr;  // the first op's name of the bulk that is being issued, or null; for the issuer only

  // release: the issuer has launched the op. Partner: the acquire loads of threads that choose a lane or a point by it.
  std::atomic<uint64_t> issued{0};
  // Issued ops that have also released their Vars; the stats show this number. release and acquire: as for `issued`.
  std::atomic<uint64_t> settled{0};
  // release: publishes what the retired work has done. Partner: the acquire load in Retired.
  std::atomic<uint64_t> retired{0};
  // A waiting thread has seen that the numbers up to here have ended, before the retirement thread has. release: that
  // thread's look at the device. Partner: the acquire in PollRecords.
  std::atomic<uint64_t> ended_at{0};
  // Launches that are not known to have ended; a graph is one launch. relaxed: it only bounds, and a few more do no
  // harm.
  std::atomic<uint32_t> queued{0};
  // Threads that query an event of the lane without holding mu. seq_cst. Partner: GiveBack waits until it is zero.
  std::atomic<uint32_t> asking{0};
  // Numbers above it have failed; all ones while the device works. release: Lose, before `retired` jumps to the end.
  // Partner: the acquire in PollWrite and ErrorOf.
  std::atomic<uint64_t> good{~uint64_t{0}};

  Mutex mu;
  LaneClock clock GUARDED_BY(mu){};
  LaneRecords records GUARDED_BY(mu);  // those that have not retired
  // The ops that are issued and have not retired, by number, linked by extra.next.
  OpRecord* first GUARDED_BY(mu) = nullptr;
  OpRecord* last GUARDED_BY(mu) = nullptr;
  struct Awaiting {
    uint64_t seq;
    OpRecord* op;                    // it has all its grants, and starts when the lane has retired seq
    const std::atomic<bool>* asked;  // whether somebody waits for it; null: somebody does. seq_cst. Partner: Ask
    bool Asked() const { return !asked || asked->load(); }
  };
  std::vector<Awaiting> awaiting GUARDED_BY(mu);
  // Parked ops for which `awaiting` got no memory, linked by extra.next. They start whenever something retires, and look
  // again.
  OpRecord* awaiting_any GUARDED_BY(mu) = nullptr;
  // The issuer is in the middle of a chain, and will record at its end if that is wanted.
  bool in_chain GUARDED_BY(mu) = false;
  // In such a chain: a graph has launched all of it, so no body of the user's can delay its end.
  bool all_launched GUARDED_BY(mu) = false;
  bool wanted GUARDED_BY(mu) = false;  // somebody needs the record at the end of the chain
  // The number up to which the retirement thread found ops without a record, and since when.
  uint64_t unrecorded GUARDED_BY(mu) = 0;
  Clock::time_point unrecorded_since GUARDED_BY(mu){};
  struct FailedOp {
    uint64_t seq;
    ErrorRecord* error;  // counted
  };
  // Ops that failed after they had been issued, while the device goes on (channel.cc). Few programs ever see one.
  std::vector<FailedOp> failed GUARDED_BY(mu);
  std::atomic<bool> any_failed{false};  // release: an entry of `failed`. Partner: the acquire in ErrorOf
  // Why the lane's channel has failed; an op that is issued later fails with it, too.
  std::exception_ptr ended GUARDED_BY(mu);
  // What bodies keep with the lane, such as handles of libraries: made on first use, found by their keys.
  std::vector<std::pair<const void*, std::shared_ptr<void>>> locals GUARDED_BY(mu);
  std::vector<Event> spare_events GUARDED_BY(mu);  // events whose records have retired; has room for all of them

  bool Retired(uint64_t seq) const { return retired.load(std::memory_order_acquire) >= seq; }
};

}  // namespace engine::detail
