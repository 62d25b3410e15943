// Row 22: programs of rows 2 and 15 beside the same in CUDASTF.
#include "stf.h"

#include <dlfcn.h>

#include <stdexcept>

#include "engine/bulk.h"
#include "rig.h"
#include "suite.h"

namespace engine::perf {
namespace {

// Null, and `why` says what is missing.
RunStf LoadStf(std::string* why) {
  const auto said = [&](const char* name) {
    const char* const text = dlerror();
    *why = std::string("CUDASTF: ") + (text ? text : name);
    return nullptr;
  };
  // Its calls of the driver are resolved against this.
  if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) return said("libcuda.so.1");
  void* const library = dlopen("libgpu_stf.so", RTLD_NOW | RTLD_LOCAL);
  if (!library) return said("libgpu_stf.so, which a build with CUDASTF_INCLUDE has");
  const auto run = reinterpret_cast<RunStf>(dlsym(library, kRunStf));
  return run ? run : said(kRunStf);
}

}  // namespace

void StfRows(Suite& suite) {
  if (!suite.Wants(22)) return;
  std::string why = "CUDASTF runs on CUDA only";
  const RunStf run = suite.target.device()->info().kind == "cuda" ? LoadStf(&why) : nullptr;
  if (!run) return suite.Absent(22, why);
  Rig rig(suite.target, {.streams = 4});
  const auto measure = [&](const std::string& name, int chains, int length, bool bulked, bool as_graph) {
    std::vector<Var> vars;
    for (int c = 0; c < chains; ++c) vars.push_back(rig.eng.NewVar());
    StfProgram theirs{.chains = chains, .length = length, .as_graph = as_graph, .launch = {}, .data = &suite.target};
    theirs.launch = [](void* target, void* stream) { Must(static_cast<Target*>(target)->Spin(Stream{stream}, {})); };
    HeldOps held(rig.eng);
    const auto ours = [&] {
      for (int i = 0; i < length; ++i)
        for (const Var& v : vars) {
          OpDesc desc{.name = "empty", .updates = v, .place = Gpu(0)};
          if (as_graph) desc.graph = {.kind = 7, .params = 1, .one_call = true};
          if (bulked) {
            rig.Push(held, desc);
          } else {
            rig.Push(desc);
          }
        }
      held.Release();
      rig.eng.WaitAll();
    };
    const auto timed = [&](auto program) { return Figures{NanosOf(program, chains * length)}; };
    suite.Measure({22,
                   name,
                   as_graph ? "CUDASTF, a graph context" : "CUDASTF, a stream context",
                   {{"time an op", "ns", {}}},
                   [&] { return timed(ours); },
                   [&] {
                     return timed([&] {
                       if (const char* error = run(theirs)) throw std::runtime_error(std::string("CUDASTF: ") + error);
                     });
                   }});
  };
  const int n = suite.Count(1000);
  measure("tiny dependent ops, one by one", 1, n, false, false);
  measure("tiny dependent ops, as a graph, pushes included", 1, n, true, true);
  measure("8 chains of tiny ops on 4 lanes", 8, n / 8, false, false);
}

}  // namespace engine::perf
