// floor: an engine for MXNet that does nothing but call each function, inside its push. What an op costs with it is what
// libmxnet.so itself takes before it comes to its engine, whichever that is.
//
// Threads: the pusher's. Errors: as the functions throw them.
#include "mxnet/abi.h"

namespace {

using namespace engine_mxnet::abi;

struct PlainVar final : Var {
  size_t version() override { return 0; }
};

class Floor final : public Engine {
 public:
  void NotifyShutdown() override {}
  void Stop() override {}
  void Start() override {}
  Var* NewVariable() override { return new PlainVar; }
  Opr* NewOperator(AsyncFn, const Vars&, const Vars&, Property, const char*, bool) override { return nullptr; }
  void DeleteOperator(Opr*) override {}
  void Push(Opr*, Context, int, bool) override {}
  void PushAsync(AsyncFn fn, Context context, const Vars&, const Vars&, Property, int, const char*, bool) override {
    fn({.context = context}, {[](Engine*, void*, const dmlc::Error*) {}, this, nullptr});
  }
  void DeleteVariable(SyncFn fn, Context context, Var* var) override {
    fn({.context = context});
    delete var;
  }
  void WaitForVar(Var*) override {}
  void WaitForAll() override {}
  void Throw(Var*) override {}
  void PushSync(SyncFn fn, Context context, const Vars&, const Vars&, Property, int, const char*) override {
    fn({.context = context});
  }
  int bulk_size() const override { return 0; }
  int set_bulk_size(int) override { return 0; }
};

mxnet::Engine* Make() { return reinterpret_cast<mxnet::Engine*>(static_cast<Engine*>(new Floor)); }

}  // namespace

namespace mxnet::engine {

Engine* CreateThreadedEnginePerDevice() { return Make(); }
Engine* CreateThreadedEnginePooled() { return Make(); }
Engine* CreateNaiveEngine() { return Make(); }

}  // namespace mxnet::engine
