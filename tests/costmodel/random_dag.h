// Random graphs with costs over three decades, the same from the same seed.
#pragma once

#include <cmath>

#include "dag.h"
#include "support/seed.h"

namespace engine::test {

struct RandomDag {
  costmodel::Dag dag;
  std::vector<double> cost;
  std::vector<Graph::Edge> edges;

  RandomDag(Random& random, uint32_t nodes, uint32_t most, double least_cost) {
    for (uint32_t n = 0; n < nodes; ++n) {
      std::vector<uint32_t> before;
      for (uint64_t k = n == 0 ? 0 : random.Below(most + 1); k > 0; --k) {
        const auto p = static_cast<uint32_t>(random.OneIn(3) ? random.Below(n) : n - 1 - random.Below(std::min(n, 8u)));
        if (std::find(before.begin(), before.end(), p) == before.end()) before.push_back(p);
      }
      for (const uint32_t p : before) edges.push_back({p, n, Graph::Edge::Kind::kOrder});
      cost.push_back(least_cost * std::pow(10, static_cast<double>(random.Below(3000)) / 1000));
    }
    dag = costmodel::Dag(nodes, edges);
  }
};

}  // namespace engine::test
