// Hostile names in all that is written for other programs: a trace as JSON, plans and explanations as DOT.
#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/spi/cost_model.h"
#include "fuzz.h"
#include "text.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto& eng = *new engine::Engine({.workers = 0});
  engine::fuzz::Input input(data, size);
  std::vector<std::string> names;
  while (!input.empty() && names.size() < 6) names.push_back(input.Line());
  names.resize(6);

  engine::Trace trace;
  for (size_t i = 0; i + 1 < names.size(); ++i)
    trace.events.push_back({names[i].c_str(), names[i + 1].c_str(), static_cast<int64_t>(i) * 1'234'567'890,
                            static_cast<int64_t>(size) << (7 * i), i, i % 2 == 1});
  const std::string json = engine::ChromeTraceJson(trace);
  engine::fuzz::Check(engine::fuzz::Json::Valid(json), "a trace that is no JSON", json);

  const auto name = [&](size_t i) { return engine::Name::Intern(names[i]); };
  engine::Var var = eng.NewVar(names[0]);
  engine::Graph g;
  const engine::ValueId in = g.Input(name(1));
  const engine::NodeId node = g.Add({.name = name(2), .inputs = {in}, .outputs = 1, .reads = {var}}, [] {});
  g.Add({.name = name(3), .writes = {var}, .cost_key = name(4)}, [] {});
  g.Output(node[0]);
  const engine::Plan plan = g.Compile(eng, {.name = name(5)});
  const std::string dot = plan.Dot();
  engine::fuzz::Check(engine::fuzz::ValidDot(dot), "a plan that is no DOT", dot);
  const engine::Explanation explained = engine::Explain(plan);
  engine::fuzz::Check(engine::fuzz::ValidDot(explained.Dot()), "an explanation that is no DOT", explained.Dot());
  (void)explained.Text();
  (void)plan.Describe();
  return 0;
}
