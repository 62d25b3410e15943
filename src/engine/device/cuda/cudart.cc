#include "device/cuda/cudart.h"

#include <dlfcn.h>
#include <link.h>

namespace engine::detail {
namespace cudart {

#define ENGINE_CUDART_DEFINE(name) constinit Found<decltype(::name)> name;
ENGINE_CUDART_FUNCTIONS(ENGINE_CUDART_DEFINE)
#undef ENGINE_CUDART_DEFINE

}  // namespace cudart
namespace {

// release: the functions are there. Partner: the acquire in LoadCudart.
constinit std::atomic<bool> g_loaded{false};

std::string Major() { return std::to_string(CUDART_VERSION / 1000); }

std::string Advice() {
  return "; `pip install nvidia-cuda-runtime` brings it, and so does the CUDA toolkit " + Major() +
         ". Looked for among what the process has loaded, in LD_LIBRARY_PATH, beside the engine's library, and where "
         "the "
         "system has its libraries";
}

std::string PathOf(void* library) {
  const link_map* map = nullptr;
  return dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : kCudartName;
}

}  // namespace

std::string LoadCudart(const std::string& library) {
  if (g_loaded.load(std::memory_order_acquire)) return {};
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* const said = dlerror();
    return "the CUDA runtime cannot be loaded: " + std::string(said ? said : library) + Advice();
  }
  std::string missing;
  const auto find = [&](const char* name) {
    void* const at = dlsym(handle, name);
    if (!at) missing += (missing.empty() ? "" : ", ") + std::string(name);
    return at;
  };
  // In two steps: a macro of CUDA's may give the function another name, that of its present form.
#define ENGINE_CUDART_NAME(name) #name
#define ENGINE_CUDART_FIND(name) cudart::name.Set(find(ENGINE_CUDART_NAME(name)));
  ENGINE_CUDART_FUNCTIONS(ENGINE_CUDART_FIND)
#undef ENGINE_CUDART_FIND
#undef ENGINE_CUDART_NAME
  if (missing.empty()) {
    g_loaded.store(true, std::memory_order_release);
    return {};
  }
  const std::string path = PathOf(handle);
  dlclose(handle);
  return "the CUDA runtime cannot be used: " + path + " lacks " + missing + ". This build needs one of CUDA " +
         Major() + ", " + std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10) +
         " or newer";
}

}  // namespace engine::detail
