// The model of the CUDA runtime: what its functions keep between calls, and what each of them begins with.
//
// Threads:   one lock for all that the calls and the streams' threads share; work runs without it.
// Ownership: handles are numbers, never addresses and never used twice, so that one that was destroyed is told from one that
//            never was. The state lives until the process ends, since streams' threads may outlive main.
// Errors:    what NVIDIA documents is returned. What it forbids, or calls undefined, is a violation besides: printed,
//            counted, and the end of the process with another status.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

namespace cuda_model {

using Nanoseconds = std::chrono::nanoseconds;

// A point of a stream, reached when all work before it has ended.
struct Point {
  bool reached = false;
  std::chrono::steady_clock::time_point when;
};

struct Kernel;
struct Capture;

// What a stream runs, and what a node of a graph holds.
struct KernelCall {
  const Kernel* kernel = nullptr;
  dim3 grid, block;
  size_t shared_bytes = 0;
  std::vector<std::vector<std::byte>> arguments;  // copied when the call is made, as CUDA does
  std::vector<void*> pointers;                    // to the arguments, for whoever asks for the parameters
  int runtime = 0;                                // the instance of it that the launch came through
};
struct CopyCall {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  cudaMemcpyKind kind = cudaMemcpyDefault;
};
struct HostCall {
  cudaHostFn_t function = nullptr;
  void* argument = nullptr;
};
struct NoCall {};
using Operation = std::variant<NoCall, KernelCall, CopyCall, cudaMemsetParams, HostCall>;

struct Work {
  std::function<void()> run;
  std::shared_ptr<Point> behind;   // waits for it first; null: for nothing
  std::shared_ptr<Point> reaches;  // null: nobody asks
  uint64_t turn = 0;               // on the stream's connection
};

// A connection between host and device, on which work begins in the order in which it came. Streams that share one wait for each
// other, though nobody asked for that: "CUDA_DEVICE_MAX_CONNECTIONS" (Programming Guide, environment variables).
struct Connection {
  uint64_t turns = 0;
  std::set<uint64_t> to_begin;
};

struct Node {
  cudaGraphNode_t handle = nullptr;
  int device = 0;
  Operation operation;
  std::vector<cudaGraphNode_t> behind;
};
struct Graph {
  std::vector<std::shared_ptr<Node>>
      nodes;                         // in the order in which they were made, so a node stands behind what it needs
  const Capture* capture = nullptr;  // that still writes it
};
struct GraphExec {
  int device = 0;
  std::vector<Node> nodes;  // with the handles of the graph that it was made of
  std::shared_ptr<Point> last;
  size_t bytes = 0;
  bool uploaded = false;  // the device takes its memory when it is first launched
};

struct Stream {
  cudaStream_t handle = nullptr;
  int device = 0;
  int priority = 0;
  std::shared_ptr<Connection> connection;
  std::deque<Work> queue;
  uint64_t submitted = 0, ended = 0;
  bool closed = false;
  std::condition_variable wake;
  std::shared_ptr<Capture> capture;
  std::vector<cudaGraphNode_t> behind;  // of its next node
  bool programmatic = false;            // the edges from these have data
  bool idle() const { return submitted == ended; }
};
struct Event {
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<Point> point;  // of its newest record; null: none, or in a capture
  std::shared_ptr<Capture> capture;
  std::vector<cudaGraphNode_t> nodes;
};
struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  cudaStream_t origin = nullptr;
  std::thread::id thread;
  cudaGraph_t graph = nullptr;
  bool invalid = false, ended = false;
};

// Device memory, or pinned memory of the host.
struct Block {
  char* begin = nullptr;
  size_t bytes = 0, capacity = 0;
  bool pinned = false;
  int device = 0;
  std::shared_ptr<struct Pool> pool;  // null: cudaMalloc, or pinned
  bool allocated = false;             // for the host: as the calls go
  int on_device = 0;                  // 1 between the allocation and the free as the device's work goes
  cudaStream_t freed_on = nullptr;
  std::shared_ptr<Point> freed;
};
struct Pool {
  int device = 0;
  uint64_t threshold = 0;
  bool internal_dependencies = true;  // what one stream has freed may make another one wait
  std::set<int> peers;                // that may use its memory, besides the device
  std::vector<std::shared_ptr<Block>> free;
};
struct Device {
  size_t used = 0;
  std::vector<std::shared_ptr<Connection>> connections;  // made as streams need them
  size_t streams = 0;                                    // ever made; they take the connections by turns
};

// Live objects of one kind by their handles.
template <class T>
class Table {
 public:
  Table(const char* what, uint64_t kind) : what_(what), tag_(uint64_t{0xC0DA} << 48 | kind << 40) {}
  void* Add(std::shared_ptr<T> object) {
    void* handle = reinterpret_cast<void*>(tag_ | ++made_ << 4);
    live_.emplace(handle, std::move(object));
    return handle;
  }
  std::shared_ptr<T> Find(const void* handle) const {
    const auto at = live_.find(handle);
    return at == live_.end() ? nullptr : at->second;
  }
  void Remove(const void* handle) { live_.erase(handle); }
  // Why Find says nothing.
  std::string Why(const void* handle) const {
    const auto number = reinterpret_cast<uint64_t>(handle);
    const uint64_t id = (number & 0xFFFFFFFFFF) >> 4;
    const bool ours = (number & ~uint64_t{0xFFFFFFFFFF}) == tag_ && id != 0 && id <= made_;
    if (!handle) return std::string("the ") + what_ + " is null";
    return ours ? std::string(what_) + " " + std::to_string(id) + " was destroyed"
                : std::string("the handle is no ") + what_;
  }
  std::unordered_map<const void*, std::shared_ptr<T>>& live() { return live_; }
  const char* what() const { return what_; }

 private:
  const char* what_;
  const uint64_t tag_;
  uint64_t made_ = 0;
  std::unordered_map<const void*, std::shared_ptr<T>> live_;
};

struct State {
  std::mutex mu;
  std::condition_variable progress;  // work of some stream ended
  int waiting = 0;                   // on it
  // "This leaves the process in an inconsistent state and any further CUDA work will return the same error" (CUDA Runtime API,
  // error types): of all devices.
  cudaError_t lost = cudaSuccess;
  std::vector<Device> devices;
  std::set<int> contexts;  // devices that have one
  Table<Stream> streams{"stream", 1};
  Table<Event> events{"event", 2};
  Table<Pool> pools{"pool", 3};
  Table<Graph> graphs{"graph", 4};
  Table<Node> nodes{"node", 5};
  Table<GraphExec> execs{"executable", 6};
  std::set<Stream*> working;  // those with a thread; destroyed ones until they have run out of work
  std::map<const char*, std::shared_ptr<Block>> memory;
  std::set<Capture*> captures;
  // A launch that waits because its stream's queue is full keeps every other call waiting: "CUDA locks held".
  bool any_full = false;
  long blocked_launches = 0;
  unsigned event_flags = 0;    // of all events made
  size_t taken_by_others = 0;  // memory that another process takes at each cudaGraphInstantiate
};
constexpr uint64_t kQueue = 1024;  // calls that a stream takes before it has begun with the first
State& state();

void Violation(const char* function, const std::string& what);

// One call of the runtime by a program: it holds the lock, is counted, and ends with the thread's last error.
class Call {
 public:
  explicit Call(const char* function);
  ~Call();
  Call(const Call&) = delete;

  void NeedContext();
  // What was planted for this call, or what all was lost by.
  cudaError_t Refusal();
  cudaError_t Return(cudaError_t error);
  // Forbidden as well: the error, after saying so.
  cudaError_t Misuse(cudaError_t error, const std::string& what) const {
    Violation(function, what);
    return error;
  }
  template <class T>
  std::shared_ptr<T> Find(const Table<T>& table, const void* handle) {
    std::shared_ptr<T> found = table.Find(handle);
    if (!found) Violation(function, table.Why(handle));
    return found;
  }
  // Blocks until it holds, or all is lost: by what, then.
  template <class Condition>
  cudaError_t Wait(Condition condition) {
    ++g.waiting;
    g.progress.wait(lock, [&] { return condition() || g.lost != cudaSuccess; });
    --g.waiting;
    return g.lost;
  }
  // Calls that may wait for all that runs on the device do so here.
  cudaError_t WaitIdle(int device);
  // Calls that are potentially unsafe during a capture (cudaThreadExchangeStreamCaptureMode).
  cudaError_t Unsafe();
  bool failed() const { return refused_; }  // what runs nevertheless is a release

  const char* const function;
  State& g;
  std::unique_lock<std::mutex> lock;

 private:
  static const char* Note(const char* name, bool begins);
  bool refused_ = false;
};

// A call of which a planted failure does not keep what it does from happening: what it gives back is gone in any case.
enum class Release : bool { kNo, kYes };

// Whether a call makes the current device's context where there is none. Most do.
enum class Context : bool { kNotNeeded, kNeeded };

template <class Body>
cudaError_t Api(const char* function, Body&& body, Release release = Release::kNo, Context context = Context::kNeeded) {
  Call call(function);
  const cudaError_t refused = call.Refusal();
  if (context == Context::kNeeded) call.NeedContext();
  if (refused == cudaSuccess) return call.Return(body(call));
  if (release == Release::kYes && call.g.devices.size() != 0) (void)body(call);
  return call.Return(refused);
}

bool LaunchesBlock();      // CUDA_LAUNCH_BLOCKING
size_t MostConnections();  // CUDA_DEVICE_MAX_CONNECTIONS: of a device
int DriverVersion();       // CUDA_MODEL_DRIVER; older than the runtime: every call is refused
// The thread's contexts, as the driver keeps them: the last is current. None: the runtime takes device 0's when it needs one.
std::vector<int>& Contexts();
int CurrentDevice();
int& Runtime();  // the instance of the runtime that this thread's calls come through: each has last errors and kernels of its own
bool& InHostFunction();                // of cudaLaunchHostFunc, on this thread
cudaStreamCaptureMode& CaptureMode();  // of this thread (cudaThreadExchangeStreamCaptureMode)
cudaError_t TakeLastError(bool keep);

// Streams: puts work on one; all work ends with an error that stays.
void Submit(Stream& stream, Work work);
void Lose(cudaError_t error);
// The operation runs on the stream, or becomes a node of the graph that it captures.
cudaError_t Issue(Call& call, Stream& stream, Operation operation);
void Run(const Operation& operation);

// Captures.
void Invalidate(Capture& capture);
cudaError_t AddNode(Call& call, Stream& stream, Operation operation);

// Kernels: those of the program, by what it calls them with.
const Kernel* FindKernel(const void* function);
cudaError_t CopyArguments(const Kernel& kernel, void** from, KernelCall* to);
cudaError_t CheckLaunch(Call& call, const Kernel* kernel, const dim3& grid, const dim3& block);
const void* HostFunction(const Kernel& kernel);
void RunKernel(const KernelCall& kernel);

// A function of the driver's, by name, for nodes of graphs; null: it is not modelled.
void* DriverCallOnGraphs(const char* name);

// Memory.
std::shared_ptr<Block> FindBlock(const void* memory);  // allocated or not; null: pageable memory of the host
bool MayTouch(const void* memory, size_t bytes);       // by work that runs: it is device memory in use, or pinned
void RunCopy(const CopyCall& copy);
void RunSet(const cudaMemsetParams& set);
void ReleaseUnused(int device);  // what pools hold beyond their thresholds, at each synchronization

}  // namespace cuda_model
