// Partition: which part of a step may run ahead of the rest, and which legal cut is the best. Pure: takes values, returns
// values, knows no threads.
//
// A node may be staged if nothing tells whether it ran ahead: all its inputs are staged or constant, it reads no Var that the
// rest writes, writes none that the rest touches (a random state is a Var that is updated), comes after no node of the
// rest, and is no collective and no target. Among the sets for which that holds the best is the one whose slower side is
// fastest, hand-over included; then the one with fewer bytes. An empty cut is an answer, and says so.
//
// Source: DeepRec's SmartStage, which goes by op types and ignores costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace engine::detail {

struct StepGraph {
  enum class Role : uint8_t { kRead, kUpdate, kWrite };
  struct Effect {
    uint32_t var;
    Role role;
  };
  struct Node {
    std::string name;
    std::vector<uint32_t> inputs;   // values
    std::vector<uint32_t> outputs;  // values
    std::vector<Effect> effects;
    std::vector<uint32_t> after;  // nodes that end before it starts, beside those that its inputs and Vars imply
    double seconds = 0;           // what a run of it takes
    bool source = false;          // reads the data: where a stage may begin
    bool target = false;          // marked: belongs to the step
    bool collective = false;
    bool copy = false;      // of its one input to a device, on a lane of its own: it goes where that is made
    std::string kept = {};  // another reason why it belongs to the step; empty: none
  };
  struct Value {
    std::string name;
    uint64_t bytes = 0;
    bool fetched = false;  // a result of the step: if it is staged, it is handed over too
  };
  std::vector<Node> nodes;  // in the order of the program
  std::vector<Value> values;
  std::vector<std::string> vars;  // names
};

struct HandOverCost {
  double seconds = 0;           // of an item, on both sides
  double seconds_per_byte = 0;  // of the boundary, on the stage's side
  int threads = 1;              // of the stage; a stage that changes Vars, and its sources, take one
};

struct Cut {
  struct Rejected {
    uint32_t node;
    std::string reason;
  };
  std::vector<uint32_t> staged;                // nodes, ascending
  std::vector<Rejected> rejected;              // those that may not be staged, ascending
  std::vector<uint32_t> left_over;             // those that may, but are better where they are
  std::vector<uint32_t> boundary;              // values that are handed over, ascending
  uint64_t bytes = 0;                          // of these
  double stage_seconds = 0, main_seconds = 0;  // of the two sides, hand-over included
  double copy_seconds = 0;                     // of the copies of what is staged, which run beside both
  double step_seconds = 0;                     // predicted: the slowest of these
  double serial_seconds = 0;                   // without a cut
};

// The staged nodes but for copies in at most `most` levels that run one behind the other, each ahead of the next, so that the slowest is as
// fast as can be; of those that are as fast, the fewest. Nodes that share a Var which one of them changes stay together.
std::vector<std::vector<uint32_t>> Levels(const StepGraph& graph, const Cut& cut, int most);

enum class Choice : uint8_t { kBest, kLargest };  // kLargest: all that may be staged, whatever it costs

// Throws std::invalid_argument for a graph whose numbers point nowhere.
Cut Partition(const StepGraph& graph, const HandOverCost& cost, Choice choice = Choice::kBest);

// What was staged, what was not and why, the boundary, and the predicted times; one line each.
std::string Explain(const StepGraph& graph, const Cut& cut);

}  // namespace engine::detail
