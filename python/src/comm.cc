// The binding of communicators: ranks, and pushes of collectives on memory of devices.
//
// Threads:   pushes, and the end of a communicator, give the GIL up. Ownership: a pushed op keeps its arrays alive.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "bindings.h"
#include "buffer.h"
#include "cancel.h"
#include "engine/testing/loopback.h"
#include "failure.h"
#include "gil.h"
#include "names.h"
#include "push.h"
#include "run.h"
#include "site.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

using engine::Collective;
using Kind = Collective::Kind;

struct PyCommunicator {
  std::optional<engine::Communicator> rank;
  std::weak_ptr<EngineState> engine;
  int device;

  PyCommunicator(engine::Communicator made, std::weak_ptr<EngineState> its_engine, int its_device)
      : rank(std::move(made)), engine(std::move(its_engine)), device(its_device) {}
  PyCommunicator(PyCommunicator&&) = default;
  ~PyCommunicator() {
    if (!rank) return;
    try {
      WithoutGil([&] { rank.reset(); });  // pushes the rank's last op, which may have to wait for room
    } catch (...) {                       // the interpreter is ending: the engine has been shut down, and nothing waits
    }
  }
};

const char* ReductionName(engine::Reduction reduction) {
  static constexpr const char* kNames[] = {"sum", "product", "max", "min", "average"};
  return kNames[static_cast<size_t>(reduction)];
}
const char* FaultName(engine::LoopbackFault fault) {
  static constexpr const char* kNames[] = {"call_fails", "async_error", "never_comes"};
  return kNames[static_cast<size_t>(fault)];
}

// What one push consists of.
struct Pushed {
  const PyCommunicator& comm;
  const StatePtr state;
  const Where at;
  std::vector<engine::Var> reads, updates, writes = {};
  std::vector<Collective> calls = {};
  std::shared_ptr<std::vector<std::shared_ptr<const void>>> owners =
      std::make_shared<std::vector<std::shared_ptr<const void>>>();

  Buffer Read(nb::handle given, nb::handle dtype, bool written, const std::string& what) const {
    return ReadBuffer({.given = given, .dtype = dtype, .written = written, .device = comm.device}, state, what);
  }
  void Add(nb::handle call, const std::string& what);
};

void Pushed::Add(nb::handle call, const std::string& index) {
  Collective made{};
  made.kind = ByName(Text(call.attr("kind"), index + ": kind"), Kind::kRecv, engine::CollectiveName, index + ": kind");
  const std::string what = index + ": " + engine::CollectiveName(made.kind);
  made.reduction = ByName(Text(call.attr("reduction"), what + ": reduction"), engine::Reduction::kAverage,
                          ReductionName, what + ": reduction");
  if (!nb::try_cast<int>(call.attr("peer"), made.peer)) RaiseTypeError(what + ": its rank is no int");
  const bool sends = made.kind != Kind::kRecv && (made.kind != Kind::kBroadcast || made.peer == comm.rank->rank());
  const bool receives = made.kind != Kind::kSend;
  Buffer send, recv;
  const nb::object dtype = call.attr("dtype");
  if (sends) send = Read(call.attr("send"), dtype, false, what + ": send");
  if (receives) recv = Read(call.attr("recv"), dtype, true, what + ": recv");
  made.send = send.address;
  made.recv = recv.address;
  made.type = sends ? send.type : recv.type;
  const auto n = static_cast<size_t>(comm.rank->size());
  made.count = made.kind == Kind::kAllGather || !receives ? send.count : recv.count;
  const size_t sent = made.kind == Kind::kReduceScatter ? n * made.count : made.count;
  const size_t received = made.kind == Kind::kAllGather ? n * made.count : made.count;
  if (sends && receives && (send.type != recv.type || send.count != sent || recv.count != received)) {
    const auto text = [](const Buffer& b) { return std::to_string(b.count) + " " + engine::DataTypeName(b.type); };
    const char* const rule = made.kind == Kind::kReduceScatter ? "send holds one recv for each rank"
                             : made.kind == Kind::kAllGather   ? "recv holds one send for each rank"
                                                               : "both are alike";
    RaiseError("UsageError", what + ": send is " + text(send) + ", recv is " + text(recv) + ", and there are " +
                                 std::to_string(n) + " ranks; " + rule);
  }
  // A view is ordered by the Vars of what it lies in, too. Of these only a part is written: an error of theirs stays.
  if (send.value) AddVars(send.value, &reads);
  if (recv.value) AddVars(recv.value, &writes, &updates);
  for (Buffer* buffer : {&send, &recv})
    if (buffer->owner) owners->push_back(std::move(buffer->owner));
  calls.push_back(made);
}

void Push(PyCommunicator& self, nb::handle calls, nb::handle reads, nb::handle updates, nb::handle writes,
          nb::handle priority, nb::handle name, nb::handle run_always, nb::handle cancel) {
  const engine::Site site = CallerSite();
  const StatePtr state = self.engine.lock();
  if (!state) RaiseNoEngine("communicator '" + self.rank->name() + "'");
  const Where at{"collectives", engine::Name::Intern(self.rank->name()), site};
  const engine::Name op = name.is_none() ? engine::Name() : engine::Name::Intern(Text(name, at.Text() + "name"));
  Pushed push{.comm = self,
              .state = state,
              .at = at,
              .reads = VarsOf(reads, "reads", at),
              .updates = VarsOf(updates, "updates", at)};
  push.writes = VarsOf(writes, "writes", at, &push.updates);
  const nb::object one = nb::module_::import_("engine.comm").attr("Collective");
  const nb::object items = nb::isinstance(calls, one) ? nb::object(nb::make_tuple(calls)) : nb::borrow(calls);
  const nb::object list = nb::steal(PySequence_Fast(items.ptr(), ""));
  if (!list.is_valid()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    RaiseTypeError(at.Text() + "calls is " + ATypeOf(calls.ptr()) +
                   "; an engine.comm.Collective or a list of them is expected");
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.ptr()); ++i) {
    const nb::handle call = PySequence_Fast_GET_ITEM(list.ptr(), i);
    const std::string index = at.Text() + "calls[" + std::to_string(i) + "]";
    if (!nb::isinstance(call, one))
      RaiseTypeError(index + " is " + ATypeOf(call.ptr()) + "; an engine.comm.Collective is expected");
    push.Add(call, index);
  }
  const int always = PyObject_IsTrue(run_always.ptr());
  if (always < 0) throw nb::python_error();
  nb::object scope = ScopeFor(cancel, at);
  const engine::OpDesc desc{.name = op,
                            .reads = push.reads,
                            .updates = push.updates,
                            .writes = push.writes,
                            .priority = PriorityOf(priority, at),
                            .run_always = always != 0,
                            .cancel = scope.is_valid() ? nb::inst_ptr<engine::CancelScope>(scope) : nullptr};
  Translated([&] {
    if (recording) {
      engine::Capture capture(*recording);
      self.rank->Push(capture, desc, push.calls, std::move(push.owners), site);
    } else {
      WithoutGil([&] { self.rank->Push(state->engine, desc, push.calls, std::move(push.owners), site); });
    }
  });
  DropDeferred();
}

// ---- making communicators

engine::CommunicatorId IdOf(nb::bytes given) {
  engine::CommunicatorId id;
  if (given.size() != id.bytes.size())
    RaiseError("UsageError", "Communicator: id has " + std::to_string(given.size()) + " bytes; the " +
                                 std::to_string(id.bytes.size()) + " of engine.comm.communicator_id are expected");
  std::memcpy(id.bytes.data(), given.c_str(), id.bytes.size());
  return id;
}

engine::CommunicatorOptions OptionsOf(std::string name, double timeout) {
  if (!(timeout >= 0 && timeout < 1e9))
    RaiseError("UsageError", std::string("Communicator: timeout is ") + nb::str(nb::float_(timeout)).c_str() +
                                 "; seconds from 0 to 1e9 are expected");
  return {.name = std::move(name), .timeout = std::chrono::milliseconds(std::llround(std::ceil(timeout * 1e3)))};
}

PyCommunicator New(nb::bytes id, int rank, int size, int device, std::string name, double timeout, nb::handle engine) {
  const StatePtr state = StateOf(engine, "Communicator");
  engine::CommunicatorOptions options = OptionsOf(std::move(name), timeout);
  options.id = IdOf(id);
  options.rank = rank;
  options.size = size;
  options.device = device;
  const engine::Site site = CallerSite();
  std::optional<engine::Communicator> made;
  Translated([&] { WithoutGil([&] { made.emplace(state->engine, options, site); }); });
  return {std::move(*made), state, device};
}

nb::list NewAll(const std::vector<int>& devices, std::string name, double timeout, nb::handle engine) {
  const StatePtr state = StateOf(engine, "communicators");
  const engine::CommunicatorOptions options = OptionsOf(std::move(name), timeout);
  const engine::Site site = CallerSite();
  std::vector<engine::Communicator> made;
  Translated([&] { WithoutGil([&] { made = engine::NewCommunicators(state->engine, devices, options, site); }); });
  nb::list out;
  for (size_t i = 0; i < made.size(); ++i)
    out.append(nb::cast(PyCommunicator(std::move(made[i]), state, devices[i]), nb::rv_policy::move));
  return out;
}

void Plant(nb::bytes id, int rank, uint64_t nth, const std::string& fault) {
  const auto kind = ByName(fault, engine::LoopbackFault::kNeverComes, FaultName, "plant_loopback_fault: fault");
  Translated([&] { engine::PlantLoopbackFault(IdOf(id), rank, nth, kind); });
}

}  // namespace

void BindComm(nb::module_& m) {
  m.def(
      "communicator_id",
      [](const std::string& kind) {
        const engine::CommunicatorId id = Translated([&] { return engine::NewCommunicatorId(kind); });
        return nb::bytes(id.bytes.data(), id.bytes.size());
      },
      nb::arg("kind"), nb::sig("def communicator_id(kind: str) -> bytes"),
      "What the ranks of a communicator have in common, 128 bytes: one process makes it and sends it to the\n"
      "others. `kind` is that of the devices: \"cuda\" (NCCL) or \"software\" (loopback, in one process).\n"
      "CommunicatorError, which names the library, if that is missing.");
  m.def("communicators", &NewAll, nb::arg("devices"), nb::kw_only(), nb::arg("name") = "world",
        nb::arg("timeout") = 0.0, nb::arg("engine") = nb::none(),
        nb::sig("def communicators(devices: Sequence[int], *, name: str = 'world', timeout: float = 0.0, "
                "engine: Engine | None = None) -> list[Communicator]"),
        "Makes all ranks of a new communicator in this process: rank i on device devices[i] of the engine.\n"
        "See Communicator.");
  m.def("plant_loopback_fault", &Plant, nb::arg("id"), nb::arg("rank"), nb::arg("nth"), nb::arg("fault"),
        nb::sig("def plant_loopback_fault(id: bytes, rank: int, nth: int, fault: str) -> None"),
        "For tests: breaks the nth push (from 1) of a rank of the loopback communicator with this id.\n"
        "`fault`: \"call_fails\", \"async_error\" (the error is found while the collective waits for others),\n"
        "\"never_comes\" (the rank hangs, and so do the ranks that wait for it).");

  nb::class_<PyCommunicator>(
      m, "Communicator", nb::is_weak_referenceable(),
      "One rank, on one device of an engine, of a group of ranks that run collectives. On CUDA devices the\n"
      "library is NCCL, on software devices loopback, within one process. Collectives are ops; they run in\n"
      "push order on every rank, on a stream of their own. Making a communicator returns at once. When its\n"
      "last reference goes, the rank leaves the group once its pending ops have ended; nobody waits for that.\n"
      "What goes wrong later (the library, another rank, `timeout`, abort) fails the ops concerned, and all\n"
      "later ones of the communicator, with CommunicatorError; the device goes on. Refused in the child of\n"
      "a fork.")
      .def(
          "__init__",
          [](PyCommunicator* self, nb::bytes id, int rank, int size, int device, std::string name, double timeout,
             nb::handle engine) {
            new (self) PyCommunicator(New(std::move(id), rank, size, device, std::move(name), timeout, engine));
          },
          nb::arg("id"), nb::arg("rank"), nb::arg("size"), nb::arg("device") = 0, nb::kw_only(),
          nb::arg("name") = "world", nb::arg("timeout") = 0.0, nb::arg("engine") = nb::none(),
          nb::sig("def __init__(self, id: bytes, rank: int, size: int, device: int = 0, *, name: str = 'world', "
                  "timeout: float = 0.0, engine: Engine | None = None) -> None"),
          "`timeout`: a collective that has not ended so many seconds after the collectives before it fails the\n"
          "communicator; 0: no limit.")
      .def("push", &Push, nb::arg("calls").none(), nb::arg("reads").none() = nb::tuple(),
           nb::arg("updates").none() = nb::tuple(), nb::arg("writes").none() = nb::tuple(), nb::kw_only(),
           nb::arg("priority").none() = 0, nb::arg("name") = nb::none(), nb::arg("run_always").none() = false,
           nb::arg("cancel") = nb::none(),
           nb::sig("def push(self, calls: Collective | Sequence[Collective], reads: Vars = (), updates: Vars = (), "
                   "writes: Vars = (), *, priority: int = 0, name: str | None = None, run_always: bool = False, "
                   "cancel: CancelScope | None = None) -> None"),
           "Pushes a Collective, or several as one group, as one op; returns at once. Any thread may push, but\n"
           "the order counts: all ranks must push alike. The op reads or writes the Var of each buffer that is a\n"
           "Value; name the Vars of other buffers as for engine.push. The op keeps the arrays until it has\n"
           "ended. By default its name is its collective's, or \"collectives\".\n"
           "TypeError or UsageError for arguments that do not fit; nothing was pushed then. If the ranks do not\n"
           "agree (sizes, dtypes, roots, groups), waits raise CommunicatorError; NCCL may also hang, until\n"
           "`timeout`.")
      .def(
          "abort", [](PyCommunicator& self, const std::string& why) { Translated([&] { self.rank->Abort(why); }); },
          nb::arg("why"), nb::sig("def abort(self, why: str) -> None"),
          "Fails the collectives that were issued and have not ended, and all later ones. Tells the other ranks\n"
          "as far as the library can.")
      .def(
          "stats",
          [](const PyCommunicator& self) {
            const engine::CommunicatorStats stats = self.rank->stats();
            nb::dict out;
            out["collectives"] = stats.collectives;
            out["groups"] = stats.groups;
            return out;
          },
          nb::sig("def stats(self) -> dict[str, int]"),
          "Counters: `collectives`, the calls that were issued; `groups`, the launches that they took, one for\n"
          "each push.")
      .def_prop_ro("rank", [](const PyCommunicator& self) { return self.rank->rank(); })
      .def_prop_ro("size", [](const PyCommunicator& self) { return self.rank->size(); })
      .def_prop_ro(
          "device", [](const PyCommunicator& self) { return self.device; },
          "The number of the device, as engine.gpu takes it.")
      .def_prop_ro(
          "name", [](const PyCommunicator& self) { return self.rank->name(); }, "What messages call it.")
      .def_prop_ro(
          "place", [](const PyCommunicator& self) { return self.rank->place(); }, "Its stream, for other ops.")
      .def_prop_ro(
          "var",
          [](const PyCommunicator& self) {
            return PyVar{self.rank->var(), self.engine};
          },
          "The Var that every collective of this communicator updates.")
      .def("__repr__", [](const PyCommunicator& self) {
        return "<engine.comm.Communicator '" + self.rank->name() + "', rank " + std::to_string(self.rank->rank()) +
               " of " + std::to_string(self.rank->size()) + " on device " + std::to_string(self.device) + ">";
      });
}

}  // namespace engine_python
