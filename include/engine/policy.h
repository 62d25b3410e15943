// Policy: who runs what, when. A policy changes speed and thread, never results.
//
// A policy governs the default CPU pool only: the I/O, named and copy placements keep their threads.
// It is stamped on an op at its push.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace engine {

enum class Policy : uint8_t {
  kThreaded,  // ready ops go to the pool's workers
  kNaive,     // each op runs inside its push when its inputs are done, for debugging (MXNet's NaiveEngine)
};

struct PolicyOptions {
  bool raise_at_push = false;  // naive only: a failing op throws where it was pushed, and poisons as usual
};

// What `SetPolicy` accepts by name, with help for people.
struct PolicyInfo {
  Policy policy;
  std::string_view name;
  std::string_view help;
};
std::span<const PolicyInfo> Policies() noexcept;
// Throws UsageError, naming what is allowed.
Policy PolicyByName(std::string_view name);

}  // namespace engine
