// A plan of two nodes that have nothing to do with each other.
#pragma once

#include <atomic>

#include "engine/plan.h"
#include "support/engine_test.h"

namespace engine::test {

struct Two {
  explicit Two(Engine& eng) : a(eng.NewVar("a")), b(eng.NewVar("b")) {
    Graph graph;
    graph.Add({.name = "free", .updates = {a}}, [this](NodeContext& ctx) {
      version_of_a = ctx.version(a);
      ran_free.fetch_add(1);
    });
    graph.Add({.name = "late", .updates = {b}}, [this](NodeContext& ctx) {
      version_of_b = ctx.version(b);
      ran_late.fetch_add(1);
    });
    plan = graph.Compile(eng, {.name = "two"});
  }
  Var a, b;
  std::atomic<int> ran_free{0}, ran_late{0};
  std::atomic<uint64_t> version_of_a{0}, version_of_b{0};
  Plan plan;
};

}  // namespace engine::test
