// Streams, events, kernels, faults and counters of a software device. Copies and memory: software_copy.cc; captures and
// graphs: software_graph.cc.
#include <algorithm>
#include <cstring>

#include "device/body_scope.h"
#include "device/software/software_impl.h"

namespace engine {
namespace detail {

SoftwareDeviceImpl::SoftwareDeviceImpl(SoftwareDeviceOptions options)
    : SoftwareDevice({.kind = "software",
                      .ordinal = options.ordinal,
                      .description = options.clock == SoftwareDeviceOptions::Clock::kThreads
                                         ? "software, a thread a stream"
                                         : "software, virtual clock, seed " + std::to_string(options.seed)}),
      options_(std::move(options)),
      memory_(options_.memory_bytes),
      executor_(options_.clock == SoftwareDeviceOptions::Clock::kThreads
                    ? MakeThreadsExecutor(options_.observer)
                    : MakeVirtualExecutor(options_.observer, options_.seed)) {}

SoftwareDeviceImpl::~SoftwareDeviceImpl() = default;

uint16_t SoftwareDeviceImpl::NextSerial() {
  static std::atomic<uint16_t> made{0};  // relaxed: only that they differ, of any 65,536 in a row
  return made.fetch_add(1, std::memory_order_relaxed);
}

DeviceStatus SoftwareDeviceImpl::Fail(DeviceCode code, std::string text) {
  DeviceStatus status = DeviceStatus::Fail(code, false, 0, std::move(text));
  last_errors_[std::this_thread::get_id()] = status;
  return status;
}

DeviceStatus SoftwareDeviceImpl::Lost() { return executor_->lost() ? executor_->LostStatus() : DeviceStatus(); }

DeviceStatus SoftwareDeviceImpl::Enter(DeviceCall call) {
  const uint64_t count = ++Count(call);
  const auto moment = std::ranges::find_if(moments_, [&](const Moment& m) { return m.call == call && m.at == count; });
  if (moment != moments_.end()) [[unlikely]] {
    const std::function<void()> then = std::move(moment->then);
    moments_.erase(moment);
    mu_.Unlock();
    then();
    mu_.Lock();
  }
  executor_->Advance(options_.costs.host[static_cast<size_t>(call)]);
  if (executor_->lost()) [[unlikely]]
    return executor_->LostStatus();
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault fault = faults_[i];
    if (fault.kind != Fault::Kind::kCall || fault.call != call || fault.at != count) continue;
    faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(i));
    std::string text = std::string(DeviceCallName(call)) + ": made to fail by FailCall, call " + std::to_string(count);
    if (!fault.sticky) return Fail(fault.code, std::move(text));
    executor_->Lose(DeviceStatus::Fail(fault.code, true, 0, std::move(text)));
    return executor_->LostStatus();
  }
  return {};
}

DeviceStatus SoftwareDeviceImpl::BadStream(const char* call, engine::Stream stream) {
  return Fail(DeviceCode::kInvalidHandle,
              std::string(call) + (stream ? ": the stream was destroyed, or is of another device"
                                          : ": stream 0 is not allowed, make one with CreateStream"));
}
DeviceStatus SoftwareDeviceImpl::BadEvent(const char* call, engine::Event event) {
  return Fail(
      DeviceCode::kInvalidHandle,
      std::string(call) + (event ? ": the event was destroyed, or is of another device" : ": the event is null"));
}

DeviceStatus SoftwareDeviceImpl::TakeLastError() {
  DeviceLock lock(mu_);
  if (DeviceStatus lost = Lost(); !lost.ok()) return lost;
  const auto it = last_errors_.find(std::this_thread::get_id());
  if (it == last_errors_.end()) return {};
  DeviceStatus last = std::move(it->second);
  last_errors_.erase(it);
  return last;
}

Lane* SoftwareDeviceImpl::TakeLane() {
  const auto idle = std::find_if(idle_lanes_.begin(), idle_lanes_.end(),
                                 [](const Lane* lane) { return lane->Reached(lane->issued); });
  if (idle == idle_lanes_.end()) {
    idle_lanes_.reserve(
        next_lane_);  // for all lanes: each has had a number of its own. So DestroyStream needs no memory
    return executor_->AddLane(next_lane_++);
  }
  Lane* lane = *idle;
  idle_lanes_.erase(idle);
  lane->id = next_lane_++;
  return lane;
}

DeviceStatus SoftwareDeviceImpl::CreateStream(int priority, engine::Stream* stream) {
  DeviceLock lock(mu_);
  *stream = {};
  if (DeviceStatus bad = Enter(DeviceCall::kCreateStream); !bad.ok()) return bad;
  if (priority != 0) {
    return Fail(DeviceCode::kInvalidValue,
                "CreateStream: priority " + std::to_string(priority) + ", but this device has only 0");
  }
  stream->raw = streams_.Add(std::make_unique<StreamState>(StreamState{TakeLane(), {}}));
  return {};
}

DeviceStatus SoftwareDeviceImpl::DestroyStream(engine::Stream stream) {
  DeviceLock lock(mu_);
  DeviceStatus status = Enter(DeviceCall::kDestroyStream);
  if (!status.ok() && !status.sticky()) return status;
  const std::unique_ptr<StreamState> gone = streams_.Remove(stream.raw);
  if (!gone) return status.ok() ? BadStream("DestroyStream", stream) : status;
  if (Capture* capture = CaptureOf(*gone)) capture->spoilt = true;
  idle_lanes_.push_back(gone->lane);
  return status;
}

DeviceStatus SoftwareDeviceImpl::NewEvent(engine::Event* event, bool timed) {
  DeviceLock lock(mu_);
  *event = {};
  if (DeviceStatus bad = Enter(DeviceCall::kCreateEvent); !bad.ok()) return bad;
  event->raw = events_.Add(std::make_unique<EventState>(EventState{next_event_++, timed}));
  return {};
}

DeviceStatus SoftwareDeviceImpl::DestroyEvent(engine::Event event) {
  DeviceLock lock(mu_);
  DeviceStatus status = Enter(DeviceCall::kDestroyEvent);
  if (!status.ok() && !status.sticky()) return status;
  const std::unique_ptr<EventState> gone = events_.Remove(event.raw);
  if (!gone) return status.ok() ? BadEvent("DestroyEvent", event) : status;
  if (observer()) observer()->OnForget(gone->id);
  return status;
}

DeviceStatus SoftwareDeviceImpl::Record(engine::Event event, engine::Stream stream) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kRecord); !bad.ok()) return bad;
  StreamState* to = streams_.Find(stream.raw);
  if (!to) return BadStream("Record", stream);
  EventState* recorded = events_.Find(event.raw);
  if (!recorded) return BadEvent("Record", event);
  if (Capture* capture = CaptureOf(*to)) {
    if (capture->spoilt) return Fail(DeviceCode::kCaptureInvalidated, "Record: the stream's capture was spoilt before");
    recorded->point = to->point;
    recorded->marker = {};
    return {};
  }
  if (!Reached(recorded->marker)) ++Count(DeviceCall::kRecordPending);
  recorded->point = {};
  if (recorded->timed) {
    recorded->reached_at = std::make_shared<Nanoseconds>();
    Push(to->lane, {.reached_at = recorded->reached_at});
  }
  recorded->marker = Mark(to->lane, recorded->id);
  return {};
}

DeviceStatus SoftwareDeviceImpl::Wait(engine::Stream stream, engine::Event event) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kWait); !bad.ok()) return bad;
  StreamState* to = streams_.Find(stream.raw);
  if (!to) return BadStream("Wait", stream);
  EventState* awaited = events_.Find(event.raw);
  if (!awaited) return BadEvent("Wait", event);
  if (CaptureOf(*to) || awaited->point.capture) return WaitInCapture(*to, *awaited);
  Order(to->lane, awaited->marker, awaited->id);
  const bool own = stream == BodyScope::OwnStream();
  BodyScope::NoteJoin({awaited->marker.lane, awaited->marker.sequence}, {own ? nullptr : to->lane, to->lane->issued});
  return {};
}

DeviceStatus SoftwareDeviceImpl::Query(engine::Event event) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kQuery); !bad.ok()) return bad;
  EventState* asked = events_.Find(event.raw);
  if (!asked) return BadEvent("Query", event);
  if (DeviceStatus bad = RefuseCaptured("Query", *asked); !bad.ok()) return bad;
  if (!Reached(asked->marker)) return DeviceStatus::NotReady();
  if (observer()) observer()->OnHostSync(asked->id);
  return {};
}

DeviceStatus SoftwareDeviceImpl::Query(engine::Stream stream) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kQuery); !bad.ok()) return bad;
  StreamState* asked = streams_.Find(stream.raw);
  if (!asked) return BadStream("Query", stream);
  if (DeviceStatus bad = RefuseCapturing("Query", *asked); !bad.ok()) return bad;
  if (DeviceStatus bad = RefuseInCapture("Query"); !bad.ok()) return bad;
  if (!asked->lane->Reached(asked->lane->issued)) return DeviceStatus::NotReady();
  if (observer()) {  // as if an event had been recorded here
    const uint64_t event = next_event_++;
    observer()->OnRecord(event, asked->lane->id);
    observer()->OnHostSync(event);
    observer()->OnForget(event);
  }
  return {};
}

DeviceStatus SoftwareDeviceImpl::Elapsed(engine::Event from, engine::Event to, std::chrono::nanoseconds* took) {
  DeviceLock lock(mu_);
  *took = {};
  if (DeviceStatus bad = Enter(DeviceCall::kElapsed); !bad.ok()) return bad;
  std::array<const EventState*, 2> asked{};
  for (size_t i = 0; i < 2; ++i) {
    EventState* event = events_.Find((i == 0 ? from : to).raw);
    if (!event) return BadEvent("Elapsed", i == 0 ? from : to);
    if (DeviceStatus bad = RefuseCaptured("Elapsed", *event); !bad.ok()) return bad;
    if (!event->reached_at)
      return Fail(DeviceCode::kInvalidHandle, event->timed ? "Elapsed: the event was never recorded"
                                                           : "Elapsed: the event has no timing, see CreateTimedEvent");
    asked[i] = event;
  }
  for (const EventState* event : asked)
    if (!Reached(event->marker)) return DeviceStatus::NotReady();
  *took = *asked[1]->reached_at - *asked[0]->reached_at;
  return {};
}

DeviceStatus SoftwareDeviceImpl::Synchronize(engine::Event event) {
  Marker until;
  uint64_t id = 0;
  {
    DeviceLock lock(mu_);
    if (DeviceStatus bad = Enter(DeviceCall::kSynchronize); !bad.ok()) return bad;
    EventState* awaited = events_.Find(event.raw);
    if (!awaited) return BadEvent("Synchronize", event);
    if (DeviceStatus bad = RefuseCaptured("Synchronize", *awaited); !bad.ok()) return bad;
    if (DeviceStatus bad = RefuseInCapture("Synchronize"); !bad.ok()) return bad;
    if (options_.check_pointers)
      if (DeviceStatus bad = BodyScope::RefuseSync("Synchronize"); !bad.ok()) return bad;
    until = awaited->marker;
    id = awaited->id;
  }
  executor_->Block(until);
  DeviceLock lock(mu_);
  if (DeviceStatus lost = Lost(); !lost.ok()) return lost;
  // Recorded again meanwhile: what observers know of the event is more than the host knows.
  const EventState* still = events_.Find(event.raw);
  const bool same = still && still->marker.lane == until.lane && still->marker.sequence == until.sequence;
  if (observer() && same) observer()->OnHostSync(id);
  return {};
}

DeviceStatus SoftwareDeviceImpl::Synchronize(engine::Stream stream) {
  Marker until;
  uint64_t event = 0;
  {
    DeviceLock lock(mu_);
    if (DeviceStatus bad = Enter(DeviceCall::kSynchronize); !bad.ok()) return bad;
    StreamState* awaited = streams_.Find(stream.raw);
    if (!awaited) return BadStream("Synchronize", stream);
    if (DeviceStatus bad = RefuseCapturing("Synchronize", *awaited); !bad.ok()) return bad;
    if (DeviceStatus bad = RefuseInCapture("Synchronize"); !bad.ok()) return bad;
    if (options_.check_pointers)
      if (DeviceStatus bad = BodyScope::RefuseSync("Synchronize"); !bad.ok()) return bad;
    event = next_event_++;
    until = Mark(awaited->lane, event);
  }
  return Block(until, event);
}

DeviceStatus SoftwareDeviceImpl::Block(const Marker& until, uint64_t event) {
  executor_->Block(until);
  DeviceLock lock(mu_);
  if (DeviceStatus lost = Lost(); !lost.ok()) return lost;
  if (observer()) {
    observer()->OnHostSync(event);
    observer()->OnForget(event);
  }
  return {};
}

Marker SoftwareDeviceImpl::Mark(Lane* lane, uint64_t event) {
  if (observer()) observer()->OnRecord(event, lane->id);
  return {lane, lane->issued};
}

void SoftwareDeviceImpl::Order(Lane* lane, const Marker& behind, uint64_t event) {
  if (!behind.lane) return;  // never recorded
  if (observer()) observer()->OnWait(lane->id, event);
  if (behind.lane == lane || Reached(behind)) return;
  Push(lane, {.wait = behind});
}

void SoftwareDeviceImpl::Push(Lane* lane, Command command) {
  ++lane->issued;
  try {
    executor_->Push(lane, std::move(command));
  } catch (...) {  // it is not there, so nobody may wait for it
    --lane->issued;
    throw;
  }
}

void SoftwareDeviceImpl::Run(Lane* lane, std::shared_ptr<const SoftwareKernel> work, Nanoseconds gap, bool copy) {
  if (observer()) observer()->OnWork(lane->id, *work);
  Command command{.work = std::move(work)};
  command.cost = command.work->cost + gap;
  if (!copy) ++kernels_;
  for (size_t i = 0; i < faults_.size() && !copy;) {
    const Fault fault = faults_[i];
    if (fault.kind == Fault::Kind::kCall || fault.at != kernels_) {
      ++i;
      continue;
    }
    faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(i));
    if (fault.kind == Fault::Kind::kHang) {
      command.hold = holds_[fault.hold] = std::make_shared<Hold>(Hold{lane});
      continue;
    }
    auto failing = std::make_shared<SoftwareKernel>(*command.work);
    failing->body = [code = fault.code] {
      throw DeviceError(DeviceStatus::Fail(code, true, 0, "made to fail by FailKernel"));
    };
    command.work = std::move(failing);
  }
  Push(lane, std::move(command));
}

void SoftwareDeviceImpl::NoteWork(const std::string& name, const StreamState& to) {
  const engine::Stream own = BodyScope::OwnStream();
  if (options_.check_pointers && own && streams_.Find(own.raw) != &to)
    BodyScope::NoteStray(name, {to.lane, to.lane->issued});
}

DeviceStatus SoftwareDeviceImpl::Enqueue(StreamState& stream, std::shared_ptr<const SoftwareKernel> work, bool copy) {
  Capture* capture = CaptureOf(stream);
  if (!capture) {
    Run(stream.lane, work, copy ? Nanoseconds{0} : options_.costs.kernel_gap, copy);
    NoteWork(work->name, stream);
    return {};
  }
  if (capture->spoilt) {
    return Fail(DeviceCode::kCaptureInvalidated, work->name + ": the stream's capture was spoilt before");
  }
  const auto index = static_cast<uint32_t>(capture->nodes.size());
  capture->nodes.push_back({std::move(work), copy, stream.point.branch, std::move(stream.point.after)});
  stream.point.after = {index};
  return {};
}

DeviceStatus SoftwareDeviceImpl::Launch(engine::Stream stream, SoftwareKernel kernel) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kLaunch); !bad.ok()) return bad;
  StreamState* to = streams_.Find(stream.raw);
  if (!to) return BadStream("Launch", stream);
  for (const BufferUse& use : kernel.uses) {
    if (!options_.check_pointers || memory_.IsDevice(use.memory, use.bytes) ||
        memory_.IsPinned(use.memory, use.bytes)) {
      continue;
    }
    return Fail(DeviceCode::kWrongMemory, "Launch: kernel '" + kernel.name +
                                              "' declares a use of memory that is not the device's, or beyond a block");
  }
  return Enqueue(*to, std::make_shared<const SoftwareKernel>(std::move(kernel)), false);
}

DeviceStatus SoftwareDeviceImpl::LaunchKernel(const KernelLaunch& launch, engine::Stream stream) {
  return Launch(stream, KernelOf(launch));
}

// The function with copies of its arguments.
SoftwareKernel SoftwareDeviceImpl::KernelOf(const KernelLaunch& launch) {
  struct alignas(std::max_align_t) Slot {
    std::byte bytes[alignof(std::max_align_t)];
  };
  const auto slots = [](size_t bytes) { return (bytes + sizeof(Slot) - 1) / sizeof(Slot); };
  size_t all = 0;
  for (size_t i = 0; i < launch.count; ++i) all += slots(launch.sizes[i]);
  auto memory = std::make_shared<std::vector<Slot>>(all);
  std::vector<void*> args;
  for (size_t i = 0, at = 0; i < launch.count; at += slots(launch.sizes[i++])) {
    args.push_back(memory->data() + at);
    std::memcpy(args.back(), launch.args[i], launch.sizes[i]);
  }
  constexpr std::chrono::microseconds kTime{1};
  return {
      "kernel", kTime, [call = launch.call, kernel = launch.kernel, memory, args] { call(kernel, args.data()); }, {}};
}

DeviceStatus SoftwareDeviceImpl::LaunchHeld(engine::Stream stream, std::string name, uint64_t* hold) {
  DeviceLock lock(mu_);
  if (DeviceStatus bad = Enter(DeviceCall::kLaunch); !bad.ok()) return bad;
  StreamState* to = streams_.Find(stream.raw);
  if (!to) return BadStream("LaunchHeld", stream);
  if (CaptureOf(*to)) return Fail(DeviceCode::kCaptureMode, "LaunchHeld: a held kernel cannot be captured");
  faults_.push_back({Fault::Kind::kHang, DeviceCall::kLaunch, kernels_ + 1, DeviceCode::kOk, false, next_hold_});
  *hold = next_hold_++;
  return Enqueue(*to, std::make_shared<const SoftwareKernel>(SoftwareKernel{std::move(name), {}, {}, {}}), false);
}

void SoftwareDeviceImpl::Release(uint64_t hold) {
  DeviceLock lock(mu_);
  std::erase_if(faults_, [&](const Fault& f) { return f.kind == Fault::Kind::kHang && f.hold == hold; });
  const auto it = holds_.find(hold);
  if (it == holds_.end()) return;
  executor_->Release(*it->second);
  holds_.erase(it);
}

void SoftwareDeviceImpl::AtCall(DeviceCall call, uint64_t nth, std::function<void()> then) {
  DeviceLock lock(mu_);
  moments_.push_back({call, Count(call) + nth, std::move(then)});
}
void SoftwareDeviceImpl::FailCall(DeviceCall call, uint64_t nth, DeviceCode code, bool sticky) {
  DeviceLock lock(mu_);
  faults_.push_back({Fault::Kind::kCall, call, Count(call) + nth, code, sticky, 0});
}
void SoftwareDeviceImpl::FailKernel(uint64_t nth, DeviceCode code) {
  DeviceLock lock(mu_);
  faults_.push_back({Fault::Kind::kKernel, DeviceCall::kLaunch, kernels_ + nth, code, true, 0});
}
uint64_t SoftwareDeviceImpl::HangKernel(uint64_t nth) {
  DeviceLock lock(mu_);
  faults_.push_back({Fault::Kind::kHang, DeviceCall::kLaunch, kernels_ + nth, DeviceCode::kOk, false, next_hold_});
  return next_hold_++;
}

void SoftwareDeviceImpl::RunUntilIdle() {
  if (options_.check_pointers) BodyScope::NoteSync("RunUntilIdle");
  executor_->RunUntilIdle();
}

DeviceCounts SoftwareDeviceImpl::counts() const {
  DeviceLock lock(mu_);
  return counts_;
}

}  // namespace detail

std::shared_ptr<SoftwareDevice> MakeSoftwareDevice(SoftwareDeviceOptions options) {
  return std::make_shared<detail::SoftwareDeviceImpl>(std::move(options));
}

}  // namespace engine
