// DeviceLane: one stream, what was issued on it, and what of that is known to have ended.
//
// Every op on the lane takes the next sequence number. `issued` numbers are ordered on the device; `retired` ones have
// ended, and the host knows. In between stand records: events, each with the number it covers and the lane's clock then,
// that is, what of every lane the work in front of it has waited for. A lane that must come behind a point waits for the
// earliest record that covers it, unless its own clock says that it does already.
//
// A record costs about as much as a launch, so it is made for somebody: when an op is issued for which others wait that do
// not go on on this lane, when somebody comes later and finds none that covers what he needs, when the issuer has nothing
// more to do, and behind each kOpsARecord ops, so that who comes later waits for little that he does not need. A run of a chain
// has its record at its end. Copies and collectives, which are few and long, have one each.
//
// Threads:   one issuer at a time for ops; anybody under `mu` for the rest: records on demand, polls, waits of others.
// Ownership: the Devices own lanes and events. Ops issued are pinned here until they retire.
// Order:     mu; two lanes' at once only as (waiting lane, lane waited for), and never the other way round at the same
//            time, because only an issuer holds its own (see Order in issue.cc).
// Errors:    a lane of a lost device issues nothing more; numbers beyond `good` have failed, and those in `failed`.
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
  std::string name;  // "gpu0/1", "gpu0/copy_in"
  enum class Use : uint8_t {
    kShared,   // also for ops that ask for no lane
    kAsked,    // for those that ask for it
    kCopies,   // few and long
    kChannel,  // the same, and other ranks may make them fail
  } use = Use::kShared;
  Stream stream;
  const char* bulk = nullptr;  // the name of the op that the run at hand began with, if it is a bulk; its issuer's

  // release by the issuer, behind the launch: partner, whoever picks a lane or a point by it.
  std::atomic<uint64_t> issued{0};
  // Issued ops that have been released, too; for the stats.
  std::atomic<uint64_t> settled{0};
  // release: what retired work did is visible. Partner: the acquire loads of those that need not wait any more.
  std::atomic<uint64_t> retired{0};
  // A wait has seen that the numbers up to here have ended; the retirement thread has yet to look. release: Partner: PollRecords.
  std::atomic<uint64_t> ended_at{0};
  // Launches issued and not known to have ended: a graph is one. relaxed: a bound, which whoever issues may pass by a few.
  std::atomic<uint32_t> queued{0};
  // Threads that ask about an event of the lane without its mu. seq_cst. Partner: GiveBack, which waits for them.
  std::atomic<uint32_t> asking{0};
  // Numbers above it failed; all ones while the device lives. Written before `retired` jumps to the end.
  std::atomic<uint64_t> good{~uint64_t{0}};

  Mutex mu;
  LaneClock clock GUARDED_BY(mu){};
  LaneRecords records GUARDED_BY(mu);        // not retired
  OpRecord* first GUARDED_BY(mu) = nullptr;  // issued and not retired, by number, linked by extra.next
  OpRecord* last GUARDED_BY(mu) = nullptr;
  struct Awaiting {
    uint64_t seq;
    OpRecord* op;                    // granted, and started when the lane has retired seq
    const std::atomic<bool>* asked;  // somebody waits for it; null: from the start
    bool Asked() const { return !asked || asked->load(); }
  };
  std::vector<Awaiting> awaiting GUARDED_BY(mu);
  bool in_run GUARDED_BY(mu) = false;      // the issuer goes on with a chain, behind which there can be a record
  bool wanted GUARDED_BY(mu) = false;      // somebody needs that record
  uint64_t unrecorded GUARDED_BY(mu) = 0;  // that the retirement thread found issued and not recorded, since when
  Clock::time_point unrecorded_since GUARDED_BY(mu){};
  struct FailedOp {
    uint64_t seq;
    ErrorRecord* error;  // counted
  };
  // Ops that failed after they had been issued, on a device that lives (channel.cc). Few programs ever see one.
  std::vector<FailedOp> failed GUARDED_BY(mu);
  std::atomic<bool> any_failed{false};      // release: an entry. Partner: acquire loads
  std::exception_ptr ended GUARDED_BY(mu);  // of a channel that has failed: what takes a number yet fails as well
  // What bodies keep with the lane: handles of libraries. By key, made on first use.
  std::vector<std::pair<const void*, std::shared_ptr<void>>> locals GUARDED_BY(mu);
  std::vector<Event> spare_events GUARDED_BY(mu);  // whose records have all retired

  bool Retired(uint64_t seq) const { return retired.load(std::memory_order_acquire) >= seq; }
};

}  // namespace engine::detail
