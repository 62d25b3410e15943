// Cost files: any text is read or refused by UsageError; what was read is written so that it reads the same.
#include "costmodel/cost_file.h"

#include <cmath>
#include <utility>

#include "fuzz.h"

using engine::NodeCost;
using engine::fuzz::Check;

namespace {

// Nine digits are written.
bool Near(double a, double b) { return std::abs(a - b) <= 1e-8 * std::abs(a); }

bool Same(const NodeCost& a, const NodeCost& b) {
  return a.key == b.key && a.shape == b.shape && a.samples == b.samples && Near(a.nanos, b.nanos) &&
         Near(a.spread, b.spread);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<NodeCost> costs;
  try {
    costs = engine::costmodel::ParseCosts(engine::fuzz::Input(data, size).Rest(), "fuzz");
  } catch (const engine::UsageError&) {
    return 0;
  }
  const std::string text = engine::costmodel::CostText(costs);
  const std::vector<NodeCost> again = engine::costmodel::ParseCosts(text, "again");
  Check(again.size() == costs.size(), "another number of costs", text);
  for (size_t i = 0; i < costs.size(); ++i) Check(Same(costs[i], again[i]), "another cost", text);
  Check(engine::costmodel::CostText(again) == text, "written differently the second time", text);
  return 0;
}
