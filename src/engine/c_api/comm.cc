// Communicators in the C API: ids, ranks, and pushes of collectives.
#include "c_api/description.h"
#include "engine/graph.h"

namespace engine::capi {
namespace {

static_assert(sizeof(EngineCommunicatorId) == sizeof(CommunicatorId));

// The number in C is one more than that in C++, because 0 means that nothing was chosen.
constexpr bool Matches(int in_c, auto in_cxx) { return in_c == static_cast<int>(in_cxx) + 1; }
using Kind = Collective::Kind;
static_assert(Matches(ENGINE_ALL_REDUCE, Kind::kAllReduce) && Matches(ENGINE_BROADCAST, Kind::kBroadcast) &&
              Matches(ENGINE_REDUCE_SCATTER, Kind::kReduceScatter) && Matches(ENGINE_ALL_GATHER, Kind::kAllGather) &&
              Matches(ENGINE_SEND, Kind::kSend) && Matches(ENGINE_RECV, Kind::kRecv));
static_assert(Matches(ENGINE_INT8, DataType::kInt8) && Matches(ENGINE_UINT8, DataType::kUint8) &&
              Matches(ENGINE_INT32, DataType::kInt32) && Matches(ENGINE_UINT32, DataType::kUint32) &&
              Matches(ENGINE_INT64, DataType::kInt64) && Matches(ENGINE_UINT64, DataType::kUint64) &&
              Matches(ENGINE_FLOAT16, DataType::kFloat16) && Matches(ENGINE_FLOAT32, DataType::kFloat32) &&
              Matches(ENGINE_FLOAT64, DataType::kFloat64) && Matches(ENGINE_BFLOAT16, DataType::kBfloat16));
static_assert(ENGINE_SUM == static_cast<int>(Reduction::kSum) &&
              ENGINE_PRODUCT == static_cast<int>(Reduction::kProduct) &&
              ENGINE_MAX == static_cast<int>(Reduction::kMax) && ENGINE_MIN == static_cast<int>(Reduction::kMin) &&
              ENGINE_AVERAGE == static_cast<int>(Reduction::kAverage));

// `value`, which must be `least` to `most`, as a value of the C++ enumeration.
template <class Enum>
Enum Read(uint32_t value, uint32_t least, uint32_t most, const std::string& what) {
  if (value < least || value > most)
    throw UsageError(what + " is " + std::to_string(value) + "; " + std::to_string(least) + " to " +
                     std::to_string(most) + " are allowed");
  return static_cast<Enum>(value - least);
}

std::vector<Collective> ReadCalls(const EngineCollective* calls, int32_t num_calls) {
  std::vector<Collective> read;
  const size_t n = CheckedCount(num_calls, calls, "calls");
  read.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const EngineCollective& c = calls[i];
    const std::string what = "calls[" + std::to_string(i) + "].";
    read.push_back({.kind = Read<Kind>(c.kind, ENGINE_ALL_REDUCE, ENGINE_RECV, what + "kind"),
                    .type = Read<DataType>(c.type, ENGINE_INT8, ENGINE_BFLOAT16, what + "type"),
                    .reduction = Read<Reduction>(c.reduction, ENGINE_SUM, ENGINE_AVERAGE, what + "reduction"),
                    .peer = c.peer,
                    .send = c.send,
                    .recv = c.recv,
                    .count = c.count});
  }
  return read;
}

EngineCommunicatorOptions Given(const EngineCommunicatorOptions& from) {
  EngineCommunicatorOptions given = {};
  ReadStruct(from, given, "EngineCommunicatorOptions");
  if (given.reserved != 0)
    throw UsageError("EngineCommunicatorOptions.reserved is " + std::to_string(given.reserved) + "; it must be 0");
  return given;
}

CommunicatorOptions ToOptions(const EngineCommunicatorOptions& given) {
  CommunicatorOptions options;
  if (given.name) options.name = given.name;
  options.device = given.device;
  options.rank = given.rank;
  if (given.size != 0) options.size = given.size;
  std::memcpy(options.id.bytes.data(), given.id.bytes, sizeof given.id.bytes);
  options.timeout = std::chrono::milliseconds(given.timeout_ms);
  return options;
}

// Takes the buffers, checks the call, and calls `submit(engine, communicator, description, calls, owner)`.
template <class Submit>
EngineStatus Pushing(const char* function, EngineCommunicator communicator, const EngineOpDesc* op,
                     const EngineCollective* calls, int32_t num_calls, void* buffers, EngineDeleter deleter,
                     Submit&& submit) noexcept {
  return ToStatus(function, [&] {
    Param param(buffers, deleter);
    CommunicatorSlot& slot = Live(communicator);
    Engine& engine = Live(slot.engine);
    const Description description(op);
    std::shared_ptr<const void> owner;
    std::vector<Collective> read;
    try {
      read = ReadCalls(calls, num_calls);
    } catch (const UsageError& e) {
      throw UsageError(description.Where() + e.what());
    }
    if (deleter) owner = std::make_shared<const Param>(std::move(param));
    submit(engine, slot.communicator, description, read, std::move(owner));
  });
}

}  // namespace
}  // namespace engine::capi

using namespace engine::capi;  // NOLINT: this file defines its C face
using engine::UsageError;

EngineStatus EngineCommunicatorIdNew(const char* kind, EngineCommunicatorId* id) {
  return ToStatus(__func__, [&] {
    EngineCommunicatorId& result = Required(id, "the result");
    const engine::CommunicatorId made = engine::NewCommunicatorId(std::string_view(&Required(kind, "the kind")));
    std::memcpy(result.bytes, made.bytes.data(), sizeof result.bytes);
  });
}

EngineStatus EngineCommunicatorNew(EngineHandle engine, const EngineCommunicatorOptions* options,
                                   EngineCommunicator* communicator) {
  return ToStatus(__func__, [&] {
    EngineCommunicator& result = Required(communicator, "the result");
    engine::Engine& live = Live(engine);
    const EngineCommunicatorOptions given = Given(Required(options, "the options"));
    result = NewHandle<EngineCommunicator>(engine, engine::Communicator(live, ToOptions(given), ToSite(given.site)));
  });
}

EngineStatus EngineCommunicatorNewAll(EngineHandle engine, const EngineCommunicatorOptions* options,
                                      const int32_t* devices, int32_t num_devices, EngineCommunicator* communicators) {
  return ToStatus(__func__, [&] {
    EngineCommunicator* const results = &Required(communicators, "the result");
    engine::Engine& live = Live(engine);
    const size_t n = CheckedCount(num_devices, devices, "devices");
    EngineCommunicatorOptions given = {};
    if (options) given = Given(*options);
    constexpr EngineCommunicatorId kNone = {};
    if (given.device != 0 || given.rank != 0 || given.size != 0 || std::memcmp(&given.id, &kNone, sizeof kNone) != 0)
      throw UsageError(
          "EngineCommunicatorOptions sets a device, rank, size or id; all ranks have their own, so leave these zero");
    auto made = engine::NewCommunicators(live, {devices, n}, ToOptions(given), ToSite(given.site));
    std::vector<EngineCommunicator> handles;
    handles.reserve(n);
    try {
      for (engine::Communicator& one : made) handles.push_back(NewHandle<EngineCommunicator>(engine, std::move(one)));
    } catch (...) {  // there was no memory
      for (EngineCommunicator handle : handles) FreeHandle(handle);
      throw;
    }
    std::copy(handles.begin(), handles.end(), results);
  });
}

EngineStatus EngineCommunicatorFree(EngineCommunicator communicator) { return Free(__func__, communicator); }

EngineStatus EngineCommunicatorAbort(EngineCommunicator communicator, const char* why) {
  return ToStatus(__func__, [&] { Live(communicator).communicator.Abort(&Required(why, "the reason")); });
}

EngineStatus EngineCommunicatorVar(EngineCommunicator communicator, EngineVar* var) {
  return ToStatus(__func__, [&] {
    EngineVar& result = Required(var, "the result");
    result = NewHandle<EngineVar>(Live(communicator).communicator.var());
  });
}

EngineStatus EngineGetCommunicatorInfo(EngineCommunicator communicator, EngineCommunicatorInfo* info) {
  return ToStatus(__func__, [&] {
    EngineCommunicatorInfo& result = Required(info, "the result");
    const engine::Communicator& live = Live(communicator).communicator;
    const engine::CommunicatorStats stats = live.stats();
    const EngineCommunicatorInfo read = {.struct_size = sizeof read,
                                         .name = engine::Name::Intern(live.name()).c_str(),
                                         .place = {static_cast<uint32_t>(live.place().kind), live.place().index},
                                         .rank = live.rank(),
                                         .size = live.size(),
                                         .collectives = stats.collectives,
                                         .groups = stats.groups};
    WriteStruct(read, result, result.struct_size, "EngineCommunicatorInfo");
  });
}

EngineStatus EnginePushCollectives(EngineCommunicator communicator, const EngineOpDesc* op,
                                   const EngineCollective* calls, int32_t num_calls, void* buffers,
                                   EngineDeleter deleter) {
  return Pushing(__func__, communicator, op, calls, num_calls, buffers, deleter,
                 [](auto& engine, auto& live, auto& d, auto& read, auto owner) {
                   live.Push(engine, d.desc(), read, std::move(owner), d.site());
                 });
}

EngineStatus EngineGraphPushCollectives(EngineGraph graph, EngineCommunicator communicator, const EngineOpDesc* op,
                                        const EngineCollective* calls, int32_t num_calls, void* buffers,
                                        EngineDeleter deleter) {
  return Pushing(__func__, communicator, op, calls, num_calls, buffers, deleter,
                 [=](auto&, auto& live, auto& d, auto& read, auto owner) {
                   engine::Capture capture(Live(graph).graph);
                   live.Push(capture, d.desc(), read, std::move(owner), d.site());
                 });
}
