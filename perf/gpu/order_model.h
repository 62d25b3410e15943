// The least number of waits that orders bulks on lanes, found by reachability: no clocks, nothing of the engine's.
//
// A bulk is a node. It comes behind the bulk before it on its lane, and behind every bulk with which a member conflicts.
// A conflict needs a wait unless the other bulk can be reached without it: through the lane's past, or through another bulk
// that has to be waited for anyway.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace engine::perf {

struct ModelOp {
  uint32_t reads;
  uint32_t updates;
};
struct ModelBulk {
  uint32_t lane;
  std::vector<ModelOp> members;
};

inline std::vector<ModelBulk> RandomBulks(uint64_t seed, uint32_t count, uint32_t lanes, uint32_t vars) {
  std::mt19937_64 chance(seed);
  std::vector<ModelBulk> bulks(count);
  for (ModelBulk& b : bulks) {
    b.lane = static_cast<uint32_t>(chance() % lanes);
    for (uint64_t i = 1 + chance() % 6; i > 0; --i)
      b.members.push_back({static_cast<uint32_t>(chance() % vars), static_cast<uint32_t>(chance() % vars)});
  }
  return bulks;
}

// Of the bulks in this order, one record at the end of each.
inline uint64_t LeastWaits(const std::vector<ModelBulk>& bulks, uint32_t lanes, uint32_t vars) {
  const size_t n = bulks.size();
  // before[i][j]: j has ended when i starts.
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n, false));
  std::vector<int> last_on_lane(lanes, -1), last_write(vars, -1);
  std::vector<std::vector<int>> reads(vars);  // since that write
  uint64_t waits = 0;
  const auto come_behind = [&](size_t i, int j) {
    before[i][static_cast<size_t>(j)] = true;
    for (size_t k = 0; k < n; ++k)
      if (before[static_cast<size_t>(j)][k]) before[i][k] = true;
  };
  for (size_t i = 0; i < n; ++i) {
    if (last_on_lane[bulks[i].lane] >= 0) come_behind(i, last_on_lane[bulks[i].lane]);
    std::vector<int> needs;
    for (const ModelOp& op : bulks[i].members) {
      if (last_write[op.reads] >= 0) needs.push_back(last_write[op.reads]);
      if (last_write[op.updates] >= 0) needs.push_back(last_write[op.updates]);
      needs.insert(needs.end(), reads[op.updates].begin(), reads[op.updates].end());
    }
    // The newest first: what it brings along is then seen. Pushed later means never brought along by something earlier.
    std::sort(needs.rbegin(), needs.rend());
    for (const int need : needs) {
      if (before[i][static_cast<size_t>(need)]) continue;
      ++waits;
      come_behind(i, need);
    }
    for (const ModelOp& op : bulks[i].members) {
      if (op.reads != op.updates) reads[op.reads].push_back(static_cast<int>(i));
      last_write[op.updates] = static_cast<int>(i);
      reads[op.updates].clear();
    }
    last_on_lane[bulks[i].lane] = static_cast<int>(i);
  }
  return waits;
}

}  // namespace engine::perf
