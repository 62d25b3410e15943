// Gates: how a run starts although some of its Vars are not free yet.
//
// A run is one op. If that op names all Vars of the run, none of its nodes starts before the last Var is granted. So a Var
// that is not free when the run starts gets a *gate*, an internal op whose only access is the run's access of that Var; the
// run's op keeps the accesses that are free. All of them are registered in one step (Protocol::RegisterTogether), so to the
// order of the Vars the run is one op as before: it makes the same versions, and two runs cannot be ordered one way on one
// Var and the other way on another.
//
// A place is one of the plan's accesses, or, behind them, one of its inputs, which may have a Var of its own
// (RunOptions::inputs).
//
//   start   looks which Vars are not free. If none of the nodes that come first could do without all of these, the run has
//           no gates: it waits as one op, which costs less. Else `missing[n]` is 1 + the gates of node n, for the first node
//           of each task that names such a Var; `remaining` counts each gate.
//   opens   when its Var is granted, on whichever thread grants it: takes the Var's error into the run's record; counts down
//           `missing` of its nodes. The count that reaches zero here belongs to a task that has stopped: it goes on.
//   stops   a task stops in front of a node whose `missing` is not zero when it has been counted down there, too. It does
//           not spin: its thread runs other tasks. It has not ended, so what comes behind it waits. A share of the run is in
//           `remaining` itself, because all tasks that it carries may stop, and then end the run before the share is over.
//   ends    with the last node that needs its Var, as an access of the run's op does: its Var gets the run's error of it, and
//           is given back. Its block stays until the run has ended: nodes may ask for the version of any Var of their run, and
//           waits look whether the run names the Var.
//
// What holds: a run ends after all its gates have opened, so no gate outlives its run. A node runs after all its Vars are
// granted and their errors are known. A gate is no op to statistics, bounds, WaitAll or reports: the run is.
//
// Not used where the run's nodes do not wait in a queue (inline, naive), for plans with nodes on devices, whose order is the
// device's, and for runs that a cost model measures, which would measure the waits.
//
// Threads: the thread that starts the run makes the gates; each opens on the thread that grants it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "order/op_record.h"

namespace engine::detail {

struct RunState;

// The closure of a gate. `blocks`: free blocks for the shares that go on with the run when the gate opens, linked by their first
// words. They are taken at the start of the run, which may be refused; the gate opens where nothing may be refused any more.
struct PlanGate {
  RunState* run;
  uint32_t place;
  void* blocks;
};

// Part of a frame, from its first run that has gates on.
struct RunGates {
  std::vector<OpRecord*> gate;    // by place; null: the run's op has the access
  std::vector<Access*> access;    // by place: the access, in the gate or in the run's op; null: there is none
  std::vector<Access*> all;       // of the run's op and of its gates, as a registration needs them
  std::vector<bool> late;         // by place: it is not free
  std::vector<uint32_t> stopped;  // by task: the node in front of which it stopped, or its first
  // By node. acq_rel: whoever counts down last sees the Var as its last user left it (other gates), and what the task has
  // done so far (`stopped`, the nodes before it). Zero outside runs.
  std::unique_ptr<std::atomic<uint32_t>[]> missing;
  uint32_t count = 0;  // gates
};

}  // namespace engine::detail
