#include <engine/data.h>

#include <cstdio>

int main() {
  engine::Engine eng({.workers = 2});
  engine::Data<double> x(eng, "x"), y(eng, "y");

  eng.Push({.name = "load"}, writes(x), [](double& in) { in = 21; });  // returns at once
  eng.Push({.name = "twice"}, reads(x), writes(y), [](const double& in, double& out) { out = 2 * in; });
  std::printf("y = %g\n", eng.Wait(y));  // both have run, in this order
}
