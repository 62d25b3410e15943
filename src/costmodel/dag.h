// Dag: a graph as numbers, and what the costs of its nodes say about it. Pure.
//
// Source: list scheduling by critical path (Hu 1961; HLFET), bound of Brent and Graham.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/graph.h"

namespace engine::costmodel {

// Successors of each node side by side; predecessors are counted.
struct Dag {
  std::vector<uint32_t> first{0};  // of node n: to[first[n] .. first[n + 1])
  std::vector<uint32_t> to;
  std::vector<uint32_t> predecessors;  // how many
  std::vector<uint32_t> order;         // topological

  Dag() = default;
  // `edges`: pairs (from, to) of an acyclic graph, each pair once.
  Dag(uint32_t nodes, std::span<const Graph::Edge> edges);

  uint32_t size() const { return static_cast<uint32_t>(predecessors.size()); }
  std::span<const uint32_t> After(uint32_t node) const {
    return {to.data() + first[node], to.data() + first[node + 1]};
  }
};

struct Critical {
  std::vector<double> rank;    // own cost and the highest rank among the successors
  std::vector<double> slack;   // length - (earliest start + rank)
  std::vector<uint32_t> path;  // one of the longest
  double work = 0;             // T1: the sum of all costs
  double length = 0;           // T-infinity: the cost of the longest path
  double Bound(int workers) const;
};
Critical FindCritical(const Dag& dag, std::span<const double> cost);

}  // namespace engine::costmodel
