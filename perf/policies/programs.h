// programs: heterogeneous graphs with known costs, the same for every contender, and the best schedule for them that is
// found offline.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "../../src/costmodel/dag.h"
#include "../../src/costmodel/simulator.h"
#include "graph_file.h"

namespace perf {

struct Program {
  std::vector<double> cost;      // nanoseconds
  std::vector<double> with_two;  // threads; of recorded programs; 0: no faster
  std::vector<engine::Graph::Edge> edges;

  uint32_t Add(double nanos, const std::vector<uint32_t>& after) {
    const auto node = static_cast<uint32_t>(cost.size());
    cost.push_back(nanos);
    for (const uint32_t p : after) edges.push_back({p, node, engine::Graph::Edge::Kind::kOrder});
    return node;
  }
  engine::costmodel::Dag ToDag() const { return {static_cast<uint32_t>(cost.size()), edges}; }
};

// Draws costs anew for each seed. Grain: about the median cost of a node, in nanoseconds.
class Draw {
 public:
  Draw(uint64_t seed, double grain) : random_(seed), grain_(grain) {}
  double About(double times) { return grain_ * times * std::uniform_real_distribution<>(0.7, 1.3)(random_); }
  double Decades(double decades) {
    return grain_ * std::pow(10, std::uniform_real_distribution<>(-decades / 2, decades / 2)(random_));
  }
  uint32_t Below(size_t n) { return static_cast<uint32_t>(random_() % n); }

 private:
  std::mt19937_64 random_;
  double grain_;
};

// A step of DIEN: lookups of different lengths, a GRU over the history with its auxiliary loss beside it, attention, a
// second GRU, the top, and the way back.
inline Program Dien(Draw draw) {
  Program p;
  constexpr int kSteps = 12, kLookups = 10;
  std::vector<uint32_t> found;
  for (int i = 0; i < kLookups; ++i) found.push_back(p.Add(draw.Decades(1), {}));
  std::vector<uint32_t> gru, attention, aux;
  for (int t = 0; t < kSteps; ++t) {
    gru.push_back(t ? p.Add(draw.About(1), {gru.back()}) : p.Add(draw.About(1), {found[0], found[1]}));
    attention.push_back(p.Add(draw.About(1.5), {gru.back(), found[2]}));
    aux.push_back(p.Add(draw.About(2), {gru.back(), found[3]}));
  }
  const uint32_t softmax = p.Add(draw.About(1), attention);
  uint32_t last = softmax;
  std::vector<uint32_t> augru;
  for (int t = 0; t < kSteps; ++t) augru.push_back(last = p.Add(draw.About(1.2), {last}));
  std::vector<uint32_t> top(found.begin() + 4, found.end());
  top.push_back(last);
  for (int i = 0; i < 3; ++i) top = {p.Add(draw.About(3 - i), top)};
  const uint32_t aux_loss = p.Add(draw.About(1), aux);
  last = p.Add(draw.About(1), {top[0], aux_loss});
  for (int t = 0; t < 2 * kSteps; ++t) {  // the way back: at each step the gradient of the weights stands aside
    last = p.Add(draw.About(1.5), {last});
    p.Add(draw.About(2), {last});
  }
  return p;
}

inline Program ForkJoin(Draw draw) {
  Program p;
  uint32_t join = p.Add(draw.About(1), {});
  for (int phase = 0; phase < 8; ++phase) {
    std::vector<uint32_t> parts;
    for (int i = 0; i < 15; ++i) parts.push_back(p.Add(draw.Decades(1), {join}));
    join = p.Add(draw.About(1), parts);
  }
  return p;
}

// A matrix in tiles. Each node writes one tile, after the node that wrote it last and those that wrote what it reads.
class Tiles {
 public:
  using Tile = std::pair<int, int>;
  void Write(Tile tile, double nanos, std::vector<Tile> reads = {}) {
    std::vector<uint32_t> after;
    reads.insert(reads.begin(), tile);
    for (const Tile& read : reads)
      if (const auto at = last_.find(read);
          at != last_.end() && std::find(after.begin(), after.end(), at->second) == after.end())
        after.push_back(at->second);
    last_[tile] = program_.Add(nanos, after);
  }
  Program Take() { return std::move(program_); }

 private:
  Program program_;
  std::map<Tile, uint32_t> last_;
};

inline Program Cholesky(Draw draw) {
  Tiles tiles;
  constexpr int kTiles = 8;
  for (int k = 0; k < kTiles; ++k) {
    tiles.Write({k, k}, draw.About(1));
    for (int i = k + 1; i < kTiles; ++i) tiles.Write({i, k}, draw.About(1.5), {{k, k}});
    for (int i = k + 1; i < kTiles; ++i)
      for (int j = k + 1; j <= i; ++j) tiles.Write({i, j}, draw.About(i == j ? 1.5 : 3), {{i, k}, {j, k}});
  }
  return tiles.Take();
}

inline Program Lu(Draw draw) {
  Tiles tiles;
  constexpr int kTiles = 6;
  for (int k = 0; k < kTiles; ++k) {
    tiles.Write({k, k}, draw.About(2));
    for (int i = k + 1; i < kTiles; ++i) {
      tiles.Write({i, k}, draw.About(1.5), {{k, k}});
      tiles.Write({k, i}, draw.About(1.5), {{k, k}});
    }
    for (int i = k + 1; i < kTiles; ++i)
      for (int j = k + 1; j < kTiles; ++j) tiles.Write({i, j}, draw.About(3), {{i, k}, {k, j}});
  }
  return tiles.Take();
}

// Layers of random width; each node comes after some of the layer before. Costs span three decades. It has at least
// `nodes` nodes.
inline Program Layered(Draw draw, uint32_t nodes = 100, uint32_t widest = 10) {
  Program p;
  std::vector<uint32_t> before, layer;
  while (p.cost.size() < nodes) {
    layer.clear();
    for (uint32_t i = 0, width = 1 + draw.Below(widest); i < width; ++i) {
      std::vector<uint32_t> after;
      for (uint32_t k = before.empty() ? 0 : 1 + draw.Below(3); k > 0; --k) {
        const uint32_t b = before[draw.Below(before.size())];
        if (std::find(after.begin(), after.end(), b) == after.end()) after.push_back(b);
      }
      layer.push_back(p.Add(draw.Decades(3), after));
    }
    before = layer;
  }
  return p;
}

inline Program MakeProgram(std::string_view shape, uint64_t seed, double grain) {
  const Draw draw(seed, grain);
  if (shape == "dien") return Dien(draw);
  if (shape == "fork_join") return ForkJoin(draw);
  if (shape == "cholesky") return Cholesky(draw);
  if (shape == "lu") return Lu(draw);
  if (shape == "layered") return Layered(draw);
  throw std::invalid_argument("no such program: " + std::string(shape));
}

inline Program FromRecorded(const std::vector<RecordedNode>& nodes) {
  Program p;
  for (const RecordedNode& node : nodes) {
    p.Add(node.nanos, node.before);
    p.with_two.push_back(node.with_two);
  }
  return p;
}

// The shortest makespan of some list schedules: by critical path, by cost, and the best of these with disturbed ranks.
inline double BestOffline(const Program& p, int workers) {
  using namespace engine::costmodel;
  const engine::costmodel::Dag dag = p.ToDag();
  const Critical critical = FindCritical(dag, p.cost);
  std::mt19937_64 random(1);
  std::vector<double> rank = critical.rank;
  double best = Simulate(dag, p.cost, rank, workers).makespan;
  const double by_cost = Simulate(dag, p.cost, p.cost, workers).makespan;
  if (by_cost < best) {
    best = by_cost;
    rank = p.cost;
  }
  for (int i = 0; i < 2000 && best > critical.Bound(workers) * 1.0005; ++i) {
    std::vector<double> other = rank;
    const double most = i % 3 == 0 ? 0.3 : 0.05;
    for (double& r : other) r *= std::uniform_real_distribution<>(1 - most, 1 + most)(random);
    const double makespan = Simulate(dag, p.cost, other, workers).makespan;
    if (makespan <= best) {
      best = makespan;
      rank = other;
    }
  }
  return best;
}

}  // namespace perf
