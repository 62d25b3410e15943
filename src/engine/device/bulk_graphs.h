// BulkGraphs: bulks that come again and again, launched as one graph instead of member by member.
//
// A run of a chain can be replayed if every member says what it is (OpDesc::graph), nothing is poisoned or cancelled,
// and it cannot split: each grant that a member still misses comes from a member before it (CannotSplit reads that off
// the protocol's links). Then all that it must come behind is known when it starts, and one launch stands for the bodies.
// Members are settled one after another as ever, so order, points, names and waits stay per op.
//
// Key: the members' kinds and the device. Parameters: their params. Of one key: the first runs are eager (kWarmUps:
// libraries set themselves up, modules load), again where a lane turns out to lack what the bodies keep with it; then it
// is captured, on a stream of its own, in thread-local mode, with all outside waits resolved before. After that
//   the same parameters          launch
//   others, one call a member    where that call is a ctx.Launch, the body gives its node the new arguments; capture other such
//                                members alone, give their nodes the new parameters; launch
//   others                       capture all of it, update the executable; if the device refuses, instantiate anew
// An executable never overlaps itself, so up to kGraphExecs of a key are kept for runs on several lanes; one whose bodies use
// what they keep with a lane (a library's handle and its workspace) is that lane's alone. A capture that
// fails is ended, its error taken, and the key stays eager; so does one that is updated more often than it pays.
//
// Threads:   one issuer of the device at a time; not thread-safe. Ownership: of graphs and executables; destroyed at Close.
// Errors:    none of its own: whatever fails, the run is eager, and the stats say so. A sticky error loses the device.
#pragma once

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device/devices.h"
#include "order/op_record.h"

namespace engine::detail {

class BulkGraphs {
 public:
  BulkGraphs(Devices& devices, DeviceState& device) : devices_(devices), device_(device) {}

  // For the head of a run, all of whose outside work is in front of `on`: launches the members as a graph. False: they
  // are to run one by one.
  bool Launch(DeviceLane& on, OpRecord* head);
  // For an op whose outside work is in front of `on`, and which stands for a run that was launched as this graph: launches
  // it again. False, and nothing has happened: the graph is no longer there, or not free, or not for this lane.
  bool LaunchAgain(DeviceLane& on, const KeptGraph& graph);
  void Close();

  // A body that is being captured uses what it keeps with its lane. `missing`: it would have to make that first, which it is
  // not to do in a capture.
  void NoteLaneLocal(bool missing) {
    lane_local_ = true;
    lane_is_cold_ |= missing;
  }

  // The same, and it was launched by ctx.Launch.
  void NoteLaunch() { ++launches_; }

  // Whether the run that `head` starts can be one graph.
  bool Suits(OpRecord* head);

 private:
  // A write of the run, or its head's accesses, as seen on the way through the members.
  struct LastOnVar {
    Protocol::Var* var;
    Access* write;           // the run's last, or null
    Protocol::Group* group;  // of the run's readers behind it, or null
    uint32_t readers;        // of the run in that group
  };
  struct Member {
    uint64_t params;
    DeviceGraphNode node;    // null: more than one call
    bool by_launch = false;  // that call was a ctx.Launch
  };
  struct Exec {
    DeviceGraph graph;  // owns the nodes
    DeviceGraphExec exec;
    std::vector<Member> members;
    size_t bytes = 0;
    OrderPoint last;          // launch
    bool lane_bound = false;  // what its bodies keep with a lane is in it: for no other than that of `last`
  };
  struct Entry {
    uint64_t made = 0;            // which of all entries ever made
    std::vector<uint64_t> kinds;  // by member: the key itself, of which the map's is a hash
    uint64_t runs = 0;
    uint64_t warm_ups = 0;  // runs that are still to be eager
    uint64_t changes = 0;   // runs that found other parameters
    bool eager = false;     // for good
    std::vector<Exec> execs;
    std::list<uint64_t>::iterator used;
  };

  bool CannotSplit(OpRecord* head);
  static uint64_t KeyOf(OpRecord* head);
  static bool Matches(const Entry& entry, OpRecord* head);
  bool Busy(const Exec& exec, const DeviceLane& on) const;
  static bool Fits(const Exec& exec, const DeviceLane& on) { return !exec.lane_bound || exec.last.lane == on.id; }
  void MakeEager(Entry& entry);
  bool Capture(OpRecord* head, Exec* out);
  bool UpdateByLaunch(const Exec& exec, Member& member, OpRecord* op);
  bool UpdateByCapture(const Exec& exec, Member& member, OpRecord* op);
  bool CaptureOne(OpRecord* op, DeviceGraph* graph, DeviceGraphNode* node);
  bool Adapt(Entry& entry, Exec& exec, OpRecord* head);
  bool RunBody(OpRecord* op, NodeUpdate* update = nullptr);
  bool Failed(const DeviceStatus& status);
  void Destroy(Exec& exec);
  void Evict();

  Devices& devices_;
  DeviceState& device_;
  Stream capture_;               // made on first use
  uint8_t lane_ = 0;             // of the run at hand
  bool lane_local_ = false;      // seen in the capture at hand
  bool lane_is_cold_ = false;    // the same, and not made yet
  uint32_t launches_ = 0;        // by ctx.Launch, of the body that is captured
  std::vector<LastOnVar> seen_;  // of one CannotSplit; kept for its memory
  std::unordered_map<uint64_t, Entry> entries_;
  std::list<uint64_t> by_use_;  // newest first
  size_t bytes_ = 0;
  uint64_t made_ = 0;
};

}  // namespace engine::detail
