// HandDeps: the bookkeeping that users write by hand for libraries that know only edges between tasks. For each Var it
// keeps the last writer, and the readers since. Its cost is in the timed part, as the search for dependencies is
// elsewhere.
// Threads:   no locks; two threads may use it at once only on different Vars.
#pragma once

#include <vector>

#include "workload.h"

namespace perf {

template <class Task>
class HandDeps {
 public:
  HandDeps() : vars_(kAllVars) {}

  // Appends to `before` all tasks that the op must wait for. One task may appear twice, through two Vars.
  template <std::size_t R, std::size_t U>
  void Collect(const Op<R, U>& op, std::vector<Task>& before) const {
    for (const VarId v : op.reads) AppendWriter(vars_[v], before);
    for (const VarId v : op.updates) {
      AppendWriter(vars_[v], before);
      before.insert(before.end(), vars_[v].readers.begin(), vars_[v].readers.end());
    }
  }

  template <std::size_t R, std::size_t U>
  void Record(const Op<R, U>& op, const Task& task) {
    for (const VarId v : op.reads) vars_[v].readers.push_back(task);
    for (const VarId v : op.updates) {
      vars_[v].readers.clear();
      vars_[v].writer.assign(1, task);
    }
  }

  void Clear() {
    for (Access& var : vars_) {
      var.readers.clear();
      var.writer.clear();
    }
  }

 private:
  struct Access {
    std::vector<Task> writer;  // none or one, because a handle need not have an empty state
    std::vector<Task> readers;
  };
  static void AppendWriter(const Access& var, std::vector<Task>& before) {
    before.insert(before.end(), var.writer.begin(), var.writer.end());
  }

  std::vector<Access> vars_;
};

}  // namespace perf
