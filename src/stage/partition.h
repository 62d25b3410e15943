// Partition: finds the part of a step that may run ahead of the rest, and the best legal cut. Pure: it takes values,
// returns values, and knows no threads.
//
// A node may be staged if nothing can tell whether it ran ahead: all its inputs are staged; it reads no Var that the rest
// writes, and writes none that the rest touches (a random state is a Var that is updated); it comes after no node of the
// rest; it is no collective and no target. A constant, which has no effects and whose inputs are constants, is staged if a
// staged node needs it. Each node is on one side, so that it runs once a step. Of the sets for which that holds, the best is the one whose
// slower side is fastest, hand-over included; of equal ones, the one with fewer bytes to hand over. An empty cut is an
// answer too.
//
// Source: DeepRec's SmartStage, which goes by op types and ignores costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/access_mode.h"

namespace engine::detail {

struct StepGraph {
  struct Effect {
    uint32_t var;
    AccessMode mode;
  };
  struct Node {
    std::string name;
    std::vector<uint32_t> inputs;   // numbers of values
    std::vector<uint32_t> outputs;  // numbers of values
    std::vector<Effect> effects;
    std::vector<uint32_t> after;  // nodes that end before it starts, besides those that its inputs and Vars imply
    double seconds = 0;           // how long one run of it takes
    bool source = false;          // reads the data, so a stage may begin with it
    bool target = false;          // marked by the program: stays in the step
    bool collective = false;
    bool copy = false;      // copies its one input to a device, on a lane of its own; staged if that input is
    std::string kept = {};  // another reason why it stays in the step; empty: none
  };
  struct Value {
    std::string name;
    uint64_t bytes = 0;
    bool fetched = false;  // an output of the step; if it is staged, it is handed over too
  };
  std::vector<Node> nodes;  // in the order of recording
  std::vector<Value> values;
  std::vector<std::string> vars;  // their names
  double caller_seconds = 0;      // what the caller does between two steps, which a stage runs beside
};

struct HandOverCost {
  double seconds = 0;           // for each item, on both sides
  double seconds_per_byte = 0;  // for each byte that is handed over, on the stage's side
  int threads = 1;              // threads of the stage; the sources, and a stage that changes Vars, use one
};

struct Cut {
  struct Rejected {
    uint32_t node;
    std::string reason;
  };
  std::vector<uint32_t> staged;                // numbers of nodes, ascending
  std::vector<Rejected> rejected;              // nodes that may not be staged, ascending
  std::vector<uint32_t> left_over;             // nodes that may be staged, but are better in the rest
  std::vector<uint32_t> boundary;              // values that are handed over, ascending
  uint64_t bytes = 0;                          // the size of the boundary
  double stage_seconds = 0, main_seconds = 0;  // time of each side, hand-over included
  double copy_seconds = 0;                     // time of the copies of staged values, which run beside both sides
  double step_seconds = 0;                     // predicted: the longest of these times
  double serial_seconds = 0;                   // without a cut
};

// Spreads the staged nodes, without copies, over at most `most` levels, which run one behind the other, each ahead of
// the next. The slowest level is as fast as possible; of equally fast results, the one with the fewest levels. Nodes
// that share a Var which one of them changes stay together.
std::vector<std::vector<uint32_t>> Levels(const StepGraph& graph, const Cut& cut, int most);

enum class Choice : uint8_t { kBest, kLargest };  // kLargest: all nodes that may be staged, whatever that costs

// std::invalid_argument for a graph that names nodes, values or Vars that it does not have.
Cut Partition(const StepGraph& graph, const HandOverCost& cost, Choice choice = Choice::kBest);

// What is staged, what is not and why, the boundary, and the predicted times; one line each.
std::string Explain(const StepGraph& graph, const Cut& cut);

}  // namespace engine::detail
