#include <engine/engine.h>
#include <cstdio>

int main() {
  engine::Engine eng({.workers = 2});
  engine::Var a = eng.NewVar("a");
  int x = 0;
  eng.Push({.name = "set", .writes = {a}}, [&] { x = 42; });
  eng.Wait(a);
  std::printf("C++ %d\n", x);
}
