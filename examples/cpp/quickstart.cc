#include <engine/engine.h>

#include <cstdio>

int main() {
  engine::Engine eng({.workers = 2});
  engine::Var x = eng.NewVar("x"), y = eng.NewVar("y");
  double in = 0, out = 0;

  eng.Push({.name = "load", .writes = {x}}, [&] { in = 21; });  // returns at once
  eng.Push({.name = "twice", .reads = {x}, .writes = {y}}, [&] { out = 2 * in; });
  eng.Wait(y);  // both have run, in this order
  std::printf("y = %g\n", out);
}
