// Fork: what MXNet's programs rely on when they fork, as its DataLoader does: the child finds all values that were on their way.
//
// MXNet stops its engine before a fork and starts it behind it. It may do so when our engine has closed its doors for the fork
// already, because handlers run in the order in which libraries were loaded; so a handler of our own, which runs before all of
// them, does it, and MXNet's calls on the forking thread then find it done.
//
// Threads: any; one fork at a time.
#pragma once

namespace engine_mxnet {

class DropIn;

void ForkWith(DropIn& engine);
void NoForkWith(DropIn& engine);
// Whether this thread is inside a fork.
bool Forking() noexcept;

}  // namespace engine_mxnet
