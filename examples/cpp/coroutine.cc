#include <engine/executor.h>

#include <cstdio>
#include <exception>

// A coroutine that starts at once and that nobody waits for. Programs that use coroutines have a type like it.
struct Job {
  struct promise_type {
    Job get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

Job Report(engine::Executor io, engine::Data<double> sum) {
  try {
    const double& value = co_await sum;  // goes on when the writes so far are done, as an op that reads `sum`
    std::printf("sum = %g\n", value);
    co_await io.schedule();  // goes on on an I/O thread, where it may block
    std::puts("reported");
  } catch (const engine::OpError& error) {
    std::printf("no sum: %s\n", error.what());
  }
}

int main() {
  engine::Engine eng({.workers = 2});
  engine::Data<double> x(eng, "x", 20), sum(eng, "sum", 22);
  eng.Push(reads(x), updates(sum), [](const double& from, double& to) { to += from; });
  Report(engine::Executor(eng, engine::Io()), sum);  // returns at once
  eng.Shutdown();                                    // runs what is left, the coroutine too
}
