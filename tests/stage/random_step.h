// RandomStep: a step as the cut sees it, with random costs and effects.
#pragma once

#include <algorithm>

#include "partition.h"
#include "support/random.h"

namespace engine::test {

inline detail::StepGraph RandomStep(Random& random) {
  detail::StepGraph graph;
  graph.vars = {"a", "b", "c"};
  const uint32_t count = 2 + static_cast<uint32_t>(random.Below(9));
  for (uint32_t n = 0; n < count; ++n) {
    graph.values.push_back({.name = "v", .bytes = random.Below(1000)});
    detail::StepGraph::Node node{.name = "n", .inputs = {}, .outputs = {n}, .effects = {}, .after = {}};
    node.source = n == 0;
    if (n > 0) node.inputs = {static_cast<uint32_t>(n - 1 - random.Below(std::min(n, 2u)))};
    if (random.OneIn(4)) {
      node.effects = {
          {static_cast<uint32_t>(random.Below(3)), random.OneIn(2) ? AccessMode::kRead : AccessMode::kUpdate}};
    }
    node.seconds = static_cast<double>(1 + random.Below(1000)) * 1e-6;
    graph.nodes.push_back(node);
  }
  return graph;
}

}  // namespace engine::test
