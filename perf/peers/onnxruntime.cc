// ONNX Runtime as a server: the same nodes as a model of custom ops, which call the same kernels.
// Variants: "sequential"; "parallel" (`workers` threads between ops, which sleep when idle); "parallel_spins" (its
// default).
// Threads:  sequential: those of the clients. All clients share one session, as is usual.
// The library is loaded when this program runs; only its headers are needed to build.
#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <array>
#include <memory>
#include <stdexcept>

#include "../serving/load.h"

namespace {

using namespace perf;
using namespace perf::serving;

const OrtApi* g_api = nullptr;
const Model* g_model = nullptr;

void Check(OrtStatus* status) {
  if (!status) return;
  const std::string text = g_api->GetErrorMessage(status);
  g_api->ReleaseStatus(status);
  throw std::runtime_error("ONNX Runtime: " + text);
}

// --- the model in ONNX's protocol buffers: the little of them that is needed

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value > 127; value >>= 7) bytes.push_back(static_cast<char>(value | 128));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
std::string Number(int field, uint64_t value) { return Varint(static_cast<uint64_t>(field) << 3) + Varint(value); }
std::string Bytes(int field, const std::string& bytes) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string NameOf(int node) { return node == kRequest ? "request" : "v" + std::to_string(node); }
std::string TensorInfo(const std::string& name, int width) {
  const std::string shape =
      Bytes(1, Number(1, kBatch)) + Bytes(1, Number(1, static_cast<uint64_t>(width)));  // dim.dim_value
  const std::string tensor = Number(1, 1) + Bytes(2, shape);                            // elem_type float, shape
  return Bytes(1, name) + Bytes(2, Bytes(1, tensor));                                   // name, type.tensor_type
}
std::string ModelBytes(const Model& model) {
  std::string graph;
  for (std::size_t i = 0; i < model.nodes().size(); ++i) {
    std::string node;
    for (const int input : model.nodes()[i].inputs) node += Bytes(1, NameOf(input));
    const std::string attribute = Bytes(1, "number") + Number(3, i) + Number(20, 2);  // name, i, type INT
    node += Bytes(2, NameOf(static_cast<int>(i))) + Bytes(4, "Kernel") + Bytes(5, attribute) + Bytes(7, "perf");
    graph += Bytes(1, node);
  }
  const int last = static_cast<int>(model.nodes().size()) - 1;
  graph +=
      Bytes(2, "wide_and_deep") + Bytes(11, TensorInfo("request", kColumns)) + Bytes(12, TensorInfo(NameOf(last), 1));
  const auto opset = [](const char* domain, uint64_t version) {
    return Bytes(8, Bytes(1, domain) + Number(2, version));
  };
  return Number(1, 8) + Bytes(7, graph) + opset("", 17) + opset("perf", 1);  // ir_version, graph, opset_import
}

// --- the custom op. There is one, and an attribute of it says which kernel it calls

OrtStatus* CreateKernel(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  int64_t number = 0;
  if (OrtStatus* status = api->KernelInfoGetAttribute_int64(info, "number", &number)) return status;
  *kernel = const_cast<Node*>(&g_model->nodes()[static_cast<std::size_t>(number)]);
  return nullptr;
}
OrtStatus* Compute(void* kernel, OrtKernelContext* context) {
  const Node& node = *static_cast<const Node*>(kernel);
  const float* in[kMostInputs];
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const OrtValue* value = nullptr;
    void* data = nullptr;
    if (OrtStatus* status = g_api->KernelContext_GetInput(context, i, &value)) return status;
    if (OrtStatus* status = g_api->GetTensorMutableData(const_cast<OrtValue*>(value), &data)) return status;
    in[i] = static_cast<const float*>(data);
  }
  const int64_t shape[] = {kBatch, node.width};
  OrtValue* value = nullptr;
  void* out = nullptr;
  if (OrtStatus* status = g_api->KernelContext_GetOutput(context, 0, shape, 2, &value)) return status;
  if (OrtStatus* status = g_api->GetTensorMutableData(value, &out)) return status;
  node.run(node, in, static_cast<float*>(out));
  return nullptr;
}
OrtCustomOp KernelOp() {
  OrtCustomOp op{};
  op.version = ORT_API_VERSION;
  op.CreateKernelV2 = CreateKernel;
  op.KernelComputeV2 = Compute;
  op.KernelDestroy = [](void*) {};
  op.GetName = [](const OrtCustomOp*) { return "Kernel"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputTypeCount = op.GetOutputTypeCount = [](const OrtCustomOp*) -> std::size_t { return 1; };
  op.GetInputType =
      op.GetOutputType = [](const OrtCustomOp*, std::size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
  op.GetInputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_VARIADIC; };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };
  op.GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemTypeDefault; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 1 << 30; };
  return op;
}

class OnnxRuntime {
 public:
  OnnxRuntime(const Config& config, const Model& model) {
    const char* path = std::getenv("ENGINE_PERF_ONNXRUNTIME");
    void* library = dlopen(path ? path : ENGINE_PERF_ONNXRUNTIME_DEFAULT, RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    const auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
    g_api = base ? base()->GetApi(ORT_API_VERSION) : nullptr;
    if (!g_api) throw std::runtime_error("the library is older than the headers");
    g_model = &model;
    Check(g_api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "perf", &env_));
    static const OrtCustomOp op = KernelOp();
    OrtCustomOpDomain* domain = nullptr;
    Check(g_api->CreateCustomOpDomain("perf", &domain));
    Check(g_api->CustomOpDomain_Add(domain, &op));
    OrtSessionOptions* options = nullptr;
    Check(g_api->CreateSessionOptions(&options));
    Check(g_api->AddCustomOpDomain(options, domain));
    Check(g_api->SetIntraOpNumThreads(options, 1));
    if (config.variant != "sequential") {
      Check(g_api->SetSessionExecutionMode(options, ORT_PARALLEL));
      Check(g_api->SetInterOpNumThreads(options, config.workers));
      Check(g_api->AddSessionConfigEntry(options, "session.inter_op.allow_spinning",
                                         config.variant == "parallel_spins" ? "1" : "0"));
    }
    const std::string bytes = ModelBytes(model);
    Check(g_api->CreateSessionFromArray(env_, bytes.data(), bytes.size(), options, &session_));
    Check(g_api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory_));
    result_ = NameOf(static_cast<int>(model.nodes().size()) - 1);
  }

  // The result is stored where the client says; the request is not copied.
  class Client {
   public:
    explicit Client(OnnxRuntime& server) : server_(server), scores_(std::make_unique<Scores>()) {
      output_ = server.Tensor(scores_->data(), 1);
    }
    Client(Client&& other) noexcept
        : server_(other.server_), scores_(std::move(other.scores_)), output_(std::exchange(other.output_, nullptr)) {}
    ~Client() {
      if (output_) g_api->ReleaseValue(output_);
    }
    const float* Ask(const float* request) {
      OrtValue* input = server_.Tensor(const_cast<float*>(request), kColumns);
      const char* const in[] = {"request"};
      const char* const out[] = {server_.result_.c_str()};
      Check(g_api->Run(server_.session_, nullptr, in, &input, 1, out, 1, &output_));
      g_api->ReleaseValue(input);
      return scores_->data();
    }

   private:
    using Scores = std::array<float, kBatch>;
    OnnxRuntime& server_;
    std::unique_ptr<Scores> scores_;
    OrtValue* output_ = nullptr;
  };
  Client MakeClient() { return Client(*this); }

 private:
  OrtValue* Tensor(float* data, int64_t width) {
    const int64_t shape[] = {kBatch, width};
    OrtValue* value = nullptr;
    Check(g_api->CreateTensorWithDataAsOrtValue(memory_, data, static_cast<std::size_t>(kBatch * width) * sizeof(float),
                                                shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
    return value;
  }

  OrtEnv* env_ = nullptr;
  OrtSession* session_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
  std::string result_;
};

}  // namespace

int main(int argc, char** argv) { return perf::serving::Main<OnnxRuntime>(argc, argv); }
