// BulkGraphs: launches a bulk that comes again as one graph of the device, in place of its members' bodies.
//
// A bulk can be launched so if three things hold. Every member says what it is (OpDesc::graph). Nothing is poisoned or
// cancelled. And the bulk cannot split: each grant that a member still misses comes from a member before it (CannotSplit
// finds this in the protocol's links). Then all that the bulk must come behind is known when it starts. The members are
// settled one after another as ever, so that order, points, names and waits are those of each op.
//
// The key of a bulk is made of its members' kinds. Its parameters are their params. The first kGraphWarmUps times that
// a bulk comes, it is eager, that is, the bodies run: meanwhile libraries set themselves up, and modules are loaded. It
// is eager, too, on a lane on which the bodies keep something that is not made yet. The next time it is captured, in
// thread-local mode, on a stream that is used for nothing else, and behind all waits for work outside. Each later time:
//   the same parameters   the executable is launched
//   others, and each      a body that uses ctx.Launch gives the new arguments to its node. Another body is captured alone,
//   changed member has    and its node gets what was captured. Then the executable is launched
//   one call
//   others                all is captured, and the executable is updated; if the device refuses that, a new one is made
// An executable cannot overlap itself, so a key has up to kGraphExecs of them, for launches on several lanes. If its
// bodies use what they keep with a lane (a library's handle and its workspace), an executable is used on that lane
// only. If a capture fails, its error is taken, and bulks with the key are eager for good, as they are if most of them
// change parameters.
//
// Threads:   used by one issuer of the device at a time; not thread-safe.
// Ownership: owns graphs and executables, and destroys them at Close.
// Errors:    none of its own: if anything fails, or memory is refused, the bulk is eager. A sticky error loses the
//            device.
#pragma once

#include <list>
#include <unordered_map>
#include <vector>

#include "device/devices.h"
#include "order/op_record.h"

namespace engine::detail {

class BulkGraphs {
 public:
  BulkGraphs(Devices& devices, DeviceState& device) : devices_(devices), device_(device) {}

  // Launches the bulk that begins with `head` as a graph on `on`, which has been made to wait for all work outside the
  // bulk. False: nothing was launched, and the members are to run one by one.
  bool Launch(DeviceLane& on, OpRecord* head);
  // Launches a graph again that a bulk was launched as before. `on` has been made to wait for all work outside. False:
  // nothing was launched, because the graph is no longer kept, is still in use, or belongs to another lane.
  bool LaunchAgain(DeviceLane& on, const KeptGraph& graph);
  void Close();

  // Called when a body that is being captured uses what it keeps with its lane. `missing`: that is not made yet, and
  // must not be made in a capture.
  void NoteLaneLocal(bool missing) {
    lane_local_ = true;
    lane_is_cold_ |= missing;
  }

  // Called when a body that is being captured launches by ctx.Launch.
  void NoteLaunch() { ++launches_; }

  // Whether the bulk that begins with `head` can be one graph.
  bool Suits(OpRecord* head);

 private:
  // What CannotSplit has seen of a Var on its way through the members.
  struct LastOnVar {
    uint64_t pass = 0;  // of CannotSplit that wrote this; the slot is free in all others
    Protocol::Var* var = nullptr;
    Access* write = nullptr;           // the last write by a member, or null
    Protocol::Group* group = nullptr;  // the group of readers behind that write, or null
    uint32_t readers = 0;              // how many members are in that group
  };
  struct Member {
    uint64_t params;
    DeviceGraphNode node;    // of its only call; null: it made several calls or none, or the node cannot be updated
    bool by_launch = false;  // the call was a ctx.Launch
  };
  struct Exec {
    DeviceGraph graph;  // owns the nodes
    DeviceGraphExec exec;
    std::vector<Member> members;
    size_t bytes = 0;
    OrderPoint last;          // of its last launch
    bool lane_bound = false;  // its bodies used what they keep with a lane: for the lane of `last` only
  };
  struct Entry {
    uint64_t made = 0;            // counts all entries, so that a kept graph is told from a later one of the same key
    std::vector<uint64_t> kinds;  // of the members; the map's key is a hash of them
    uint64_t starts = 0;          // how often the bulk has started, eagerly or as a graph
    uint64_t warm_ups = 0;        // how many more times it is to be eager
    uint64_t changes = 0;         // how many times it had other parameters than the executable
    bool eager = false;           // it is eager from now on
    std::vector<Exec> execs;
    std::list<uint64_t>::iterator used;
  };

  bool CannotSplit(OpRecord* head);
  Entry& EntryOf(uint64_t key, OpRecord* head);
  LastOnVar& Last(Protocol::Var* var);
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
  Stream capture_;             // made on first use
  uint8_t lane_ = 0;           // on which the current bulk is launched
  bool lane_local_ = false;    // a body of the current capture used what it keeps with the lane
  bool lane_is_cold_ = false;  // and that was not made yet
  uint32_t launches_ = 0;      // how often the body that is being captured called ctx.Launch
  // Used by CannotSplit, and kept for its memory: a hash table by Var, so that a bulk over many Vars is no slower an op.
  std::vector<LastOnVar> seen_;
  uint64_t pass_ = 0;
  size_t n_seen_ = 0;
  std::unordered_map<uint64_t, Entry> entries_;
  std::list<uint64_t> by_use_;  // newest first
  size_t bytes_ = 0;
  uint64_t made_ = 0;
};

}  // namespace engine::detail
