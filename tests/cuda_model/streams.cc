// Streams: queues in order, each worked off by a thread of its own; host functions; what waits for a stream.
#include <algorithm>

#include "model.h"

namespace cuda_model {
namespace {

// Runs the stream's work in order until it is destroyed and empty. When all is lost work is dropped.
void Main(std::shared_ptr<Stream> stream) {
  State& g = state();
  std::unique_lock lock(g.mu);
  while (true) {
    stream->wake.wait(lock, [&] { return !stream->queue.empty() || stream->closed; });
    if (stream->queue.empty()) break;
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    std::set<uint64_t>& to_begin = stream->connection->to_begin;
    const auto may_begin = [&] { return *to_begin.begin() == work.turn && (!work.behind || work.behind->reached); };
    if (!may_begin()) {
      ++g.waiting;
      g.progress.wait(lock, [&] { return may_begin() || g.lost != cudaSuccess; });
      --g.waiting;
    }
    to_begin.erase(work.turn);
    if (!to_begin.empty() && g.waiting != 0) g.progress.notify_all();
    if (work.run && g.lost == cudaSuccess) {
      lock.unlock();
      work.run();
      work.run = nullptr;
      lock.lock();
    }
    ++stream->ended;
    if (work.reaches) {
      work.reaches->reached = true;
      work.reaches->when = std::chrono::steady_clock::now();
    }
    if (g.waiting != 0) g.progress.notify_all();
  }
  g.working.erase(stream.get());
  if (g.waiting != 0) g.progress.notify_all();
}

// The stream that the host asks about: refused while it captures, and what it captures is spoilt.
cudaError_t FindToAsk(Call& call, cudaStream_t stream, std::shared_ptr<Stream>* found) {
  *found = call.Find(call.g.streams, stream);
  if (!*found) return cudaErrorInvalidResourceHandle;
  if ((*found)->capture) {
    Invalidate(*(*found)->capture);
    return cudaErrorStreamCaptureUnsupported;
  }
  return call.Unsafe();
}

}  // namespace

void Submit(Stream& stream, Work work) {
  Connection& connection = *stream.connection;
  work.turn = ++connection.turns;
  connection.to_begin.insert(connection.to_begin.end(), work.turn);
  stream.queue.push_back(std::move(work));
  ++stream.submitted;
  stream.wake.notify_one();
}

void Lose(cudaError_t error) {
  State& g = state();
  if (g.lost == cudaSuccess) g.lost = error;
  g.progress.notify_all();
}

cudaError_t Call::WaitIdle(int device) {
  return Wait([&] {
    for (const Stream* s : g.working)
      if (s->device == device && !s->idle()) return false;
    return true;
  });
}

cudaError_t Issue(Call& call, Stream& stream, Operation operation) {
  if (stream.capture) return AddNode(call, stream, std::move(operation));
  if (stream.submitted - stream.ended >= kQueue) {
    ++call.g.blocked_launches;
    call.g.any_full = true;
    const cudaError_t lost = call.Wait([&] { return stream.submitted - stream.ended < kQueue; });
    call.g.any_full = false;
    call.g.progress.notify_all();
    if (lost != cudaSuccess) return lost;
  }
  Submit(stream, {[operation = std::move(operation)] { Run(operation); }, {}, {}});
  return cudaSuccess;
}

void Run(const Operation& operation) {
  if (const auto* kernel = std::get_if<KernelCall>(&operation)) RunKernel(*kernel);
  if (const auto* copy = std::get_if<CopyCall>(&operation)) RunCopy(*copy);
  if (const auto* set = std::get_if<cudaMemsetParams>(&operation)) RunSet(*set);
  if (const auto* host = std::get_if<HostCall>(&operation)) {
    InHostFunction() = true;
    host->function(host->argument);
    InHostFunction() = false;
  }
}

}  // namespace cuda_model

using namespace cuda_model;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    if (!stream || flags > cudaStreamNonBlocking) return call.Misuse(cudaErrorInvalidValue, "the result, or the flags");
    if (flags != cudaStreamNonBlocking)
      return call.Misuse(cudaErrorNotSupported,
                         "streams that wait for stream 0 are not modelled: nobody shall need them");
    auto made = std::make_shared<Stream>();
    made->device = CurrentDevice();
    made->priority = std::min(0, std::max(priority, -5));  // "will be clamped"
    Device& device = call.g.devices[static_cast<size_t>(made->device)];
    const size_t connection = device.streams++ % MostConnections();
    if (connection == device.connections.size()) device.connections.push_back(std::make_shared<Connection>());
    made->connection = device.connections[connection];
    *stream = made->handle = static_cast<cudaStream_t>(call.g.streams.Add(made));
    call.g.working.insert(made.get());
    std::thread(Main, made).detach();
    return cudaSuccess;
  });
}

// "the function will return immediately and the resources [...] will be released [...] once the device has completed all
// work in stream".
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        const auto found = call.Find(call.g.streams, stream);
        if (!found) return cudaErrorInvalidResourceHandle;
        if (found->capture) {
          Invalidate(*found->capture);
          return call.Misuse(cudaErrorStreamCaptureUnsupported, "the stream captures");
        }
        found->closed = true;
        found->wake.notify_one();
        call.g.streams.Remove(stream);
        return cudaSuccess;
      },
      Release::kYes);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    std::shared_ptr<Stream> found;
    if (const cudaError_t bad = FindToAsk(call, stream, &found); bad != cudaSuccess) return bad;
    const uint64_t until = found->submitted;
    const cudaError_t lost = call.Wait([&] { return found->ended >= until; });
    if (lost == cudaSuccess) ReleaseUnused(found->device);
    return lost;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    std::shared_ptr<Stream> found;
    if (const cudaError_t bad = FindToAsk(call, stream, &found); bad != cudaSuccess) return bad;
    return found->idle() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.streams, stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    *device = found->device;
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.streams, stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (!function) return call.Misuse(cudaErrorInvalidValue, "the function is null");
    return Issue(call, *found, HostCall{function, argument});
  });
}

}  // extern "C"
