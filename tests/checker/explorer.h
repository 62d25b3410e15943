// Explorer: visits every state that the virtual threads of a program can reach, by any interleaving.
//
// A depth-first search. A step runs one thread from one scheduling point to the next. A state is the program's memory
// and the live stack of every thread: it is saved by copying, so that going back needs no replay, and remembered as a
// digest of 128 bits, so that what follows a state is explored once, however it was reached. Nothing is sampled or
// bounded; the answer holds for all interleavings that are sequentially consistent.
//
// Threads: one at a time; Explorer::current() is the one that runs.
#pragma once

#include <deque>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "fiber.h"
#include "program.h"
#include "state_set.h"

namespace checker {

struct Outcome {
  uint64_t states = 0;
  uint64_t steps = 0;
  uint64_t ends = 0;   // distinct states in which nothing can run any more
  size_t deepest = 0;  // steps on the longest path
  double seconds = 0;
  std::string violation;  // the rule that was broken first; empty if none
  std::string trace;      // how it came to that, a line an access
};

class Explorer {
 public:
  static constexpr int kMaxThreads = 16;

  explicit Explorer(Program& program);
  ~Explorer();
  Explorer(const Explorer&) = delete;

  Outcome Run();

  static Explorer& current() { return *current_; }
  Program& program() { return program_; }

  // For Program::Begin.
  int AddThread(std::string name, std::function<void()> body);

  // For the program, on any of its threads. A started thread runs from the beginning of its body.
  void Start(int thread);
  int running() const { return running_; }

  // A scheduling point before an access. The first one after a Pause or a start belongs to the same step.
  void Point() {
    if (!riding_) Yield({}, /*rides=*/false);
    riding_ = false;
  }
  template <class T>
  void PointWhile(const T* word, T value) {  // and the thread is not schedulable while *word == value
    if (!riding_ || *word == value) Yield(Blocked(word, value), /*rides=*/false);
    riding_ = false;
  }
  // A scheduling point of its own, together with the access that follows.
  void Pause() { Yield({}, /*rides=*/true); }
  template <class T>
  void PauseWhile(const T* word, T value) {
    Yield(Blocked(word, value), /*rides=*/true);
  }

  [[noreturn]] void Fail(const char* rule);
  void Record(Event event);
  void Remark(const char* remark, uint64_t number = 0) { Record({.remark = remark, .before = number}); }

 private:
  struct Block {
    const void* word = nullptr;
    uint64_t value = 0;
    uint32_t bytes = 0;
  };
  enum class Status : uint8_t { kUnstarted, kRunnable, kOver };
  struct ThreadState {
    Digest digest;
    Block block;
    Status status = Status::kUnstarted;
    bool rides = false;
  };
  struct Thread {
    std::string name;
    std::function<void()> body;
    Fiber fiber;
  };
  // A state on the current path, and what is still to be tried there.
  struct Frame {
    size_t saved;      // where its bytes begin
    size_t trace;      // events before it
    uint32_t untried;  // threads
    int last;          // thread that ran last: goes first, for readable traces
  };

  template <class T>
  static Block Blocked(const T* word, T value) {
    static_assert(sizeof(T) <= 8);
    return {word, static_cast<uint64_t>(value), sizeof(T)};
  }
  void Yield(const Block& block, bool rides);
  static void ThreadMain(void* thread);

  bool Enabled(const ThreadState& state) const;
  uint32_t EnabledThreads() const;
  void Step(int thread);
  void Explore();
  void Push(int last);
  int Choose(Frame& frame) const;
  void Save();
  void Restore(size_t from);
  Digest StateDigest();
  void Print(std::ostream& out) const;

  static Explorer* current_;

  Program& program_;
  std::deque<Thread> threads_;  // fibers do not move
  std::vector<ThreadState> state_;
  int running_ = -1;
  bool riding_ = false;
  const char* violation_ = nullptr;

  StateSet seen_;
  std::vector<Frame> path_;
  std::vector<std::byte> saved_;
  std::vector<Event> events_;
  Outcome outcome_;
};

}  // namespace checker
