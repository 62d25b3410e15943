// The three factories, under the names by which libmxnet.so asks for them.
#include <utility>

#include "drop_in.h"
#include "host.h"

namespace engine_mxnet {
namespace {

Host g_host{};  // set while MXNet is not loaded yet
bool g_hosted = false;

mxnet::Engine* Make(bool naive) {
  return reinterpret_cast<mxnet::Engine*>(static_cast<abi::Engine*>(new DropIn(naive)));
}

}  // namespace

void SetHost(const Host& host) {
  g_host = host;
  g_hosted = true;
}
const Host* TheHost() noexcept { return g_hosted ? &g_host : nullptr; }

}  // namespace engine_mxnet

namespace mxnet::engine {

Engine* CreateThreadedEnginePerDevice() { return engine_mxnet::Make(false); }
Engine* CreateThreadedEnginePooled() { return engine_mxnet::Make(false); }
Engine* CreateNaiveEngine() { return engine_mxnet::Make(true); }

}  // namespace mxnet::engine
