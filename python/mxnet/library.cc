#include "library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

#include "abi.h"
#include "engine/error.h"

namespace engine_mxnet {
namespace {

constexpr const char* kGetVersion = "MXGetVersion";
constexpr const char* kGetOpenMp = "_ZN5mxnet6engine6OpenMP3GetEv";
constexpr const char* kStartWorker = "_ZN5mxnet6engine6OpenMP22on_start_worker_threadEb";
constexpr const char* kStorageRef = "_ZN5mxnet7Storage13_GetSharedRefEv";
constexpr const char* kGetProfiler = "_ZN5mxnet8profiler8Profiler3GetEPSt10shared_ptrIS1_E";
constexpr const char* kFactory = "_ZN5mxnet6engine29CreateThreadedEnginePerDeviceEv";

int FindMxnet(dl_phdr_info* info, size_t, void* found) {
  const char* name = std::strrchr(info->dlpi_name, '/');
  if (!name || std::strcmp(name, "/libmxnet.so") != 0) return 0;
  *static_cast<std::string*>(found) = info->dlpi_name;
  return 1;
}

std::string VersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Written by Library(), before MXNet has its engine.
void* g_open_mp = nullptr;
void (*g_start_worker)(void* open_mp,
                       bool use_omp) = nullptr;  // a member function of OpenMP; null: no libmxnet.so here

}  // namespace

void* AddressOfMxnet(const char* name) {
  const std::string path = LoadedMxnet();
  void* const library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (!library) throw ::engine::UsageError("libmxnet.so '" + path + "' cannot be looked into: " + dlerror());
  void* const found = dlsym(library, name);
  dlclose(library);  // gives back only what we took: MXNet stays
  if (!found) throw ::engine::UsageError(path + " has no " + name + "; engine.mxnet is made for MXNet 1.9.1's wheel");
  return found;
}

void StartWorkerThread() {
  if (g_start_worker) g_start_worker(g_open_mp, true);
}

std::string LoadedMxnet() {
  std::string path;
  dl_iterate_phdr(&FindMxnet, &path);
  return path;
}

const char* OwnPath() {
  // A hidden function: the address of a factory would be that of the first library that has one.
  Dl_info ours{};
  dladdr(reinterpret_cast<void*>(&LoadedMxnet), &ours);
  return ours.dli_fname;
}

std::string OtherFactories() {
  Dl_info found{};
  void* const first = dlsym(RTLD_DEFAULT, kFactory);
  if (!first) return "no library";
  dladdr(first, &found);
  return std::strcmp(found.dli_fname, OwnPath()) == 0 ? std::string() : found.dli_fname;
}

Library::Library() {
  const std::string path = LoadedMxnet();
  if (path.empty()) return;  // a program of ours that uses the factories by itself
  int version = 0;
  OfMxnet<int(int*)>(kGetVersion)(&version);
  if (version != kMxnetVersion)
    throw ::engine::UsageError(path + " is MXNet " + VersionText(version) + "; engine.mxnet is made for 1.9.1 only");
  g_open_mp = OfMxnet<void*()>(kGetOpenMp)();
  g_start_worker = OfMxnet<void(void*, bool)>(kStartWorker);
  storage_ = OfMxnet<std::shared_ptr<void>()>(kStorageRef)();
  OfMxnet<void*(std::shared_ptr<void>*)>(kGetProfiler)(&profiler_);
}

}  // namespace engine_mxnet
