// model: a wide-and-deep ranking model as a list of nodes over one request, and its kernels. Every contender runs the
// same nodes and kernels, so that executors are compared and not kernels.
// Threads:   a Model does not change once it is built; kernels may run concurrently.
// Order:     nodes are listed in topological order; the last one is the result.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace perf::serving {

inline constexpr int kBatch = 8;  // candidates that one request ranks
inline constexpr int kSparse = 26, kDense = 13, kCrosses = 20;
inline constexpr int kWide = 16;         // width of an embedding
inline constexpr int kBuckets = 10'000;  // rows of a table
inline constexpr int kRequest = -1;      // as an input: the request itself, kBatch rows of kSparse + kDense
inline constexpr int kColumns = kSparse + kDense;
inline constexpr std::size_t kMostInputs = 64;

struct Node {
  using Run = void (*)(const Node&, const float* const* in, float* out);
  const char* kind;
  Run run;
  std::vector<int> inputs;  // numbers of nodes, or kRequest
  std::vector<int> widths;  // of the inputs
  int width;                // of the output, which has kBatch rows
  int column = 0;
  const float* weights = nullptr;
};

// --- kernels, each over kBatch rows

inline void Slice(const Node& n, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) out[b] = in[0][b * n.widths[0] + n.column];
}
inline float Mixed(float value, int salt) {
  const auto bits = static_cast<uint64_t>(static_cast<int64_t>(value)) * 31 + static_cast<uint64_t>(salt);
  return static_cast<float>(((bits * 0x9e3779b97f4a7c15u) >> 33) % kBuckets);
}
inline void Hash(const Node& n, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) out[b] = Mixed(in[0][b], n.column);
}
inline void Cross(const Node& n, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) out[b] = Mixed(in[0][b] * 131 + in[1][b], n.column);
}
inline void Lookup(const Node& n, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) {
    const float* row = n.weights + static_cast<std::size_t>(in[0][b]) * static_cast<std::size_t>(n.width);
    for (int i = 0; i < n.width; ++i) out[b * n.width + i] = row[i];
  }
}
inline void Normalize(const Node& n, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) {
    const float* row = in[0] + b * n.width;
    float sum = 1e-6f;
    for (int i = 0; i < n.width; ++i) sum += row[i] * row[i];
    const float scale = 1 / std::sqrt(sum);
    for (int i = 0; i < n.width; ++i) out[b * n.width + i] = row[i] * scale;
  }
}
inline void Log(const Node&, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) out[b] = std::log1p(in[0][b]);
}
inline void Bucket(const Node&, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) out[b] = std::floor(in[0][b] * 10);
}
inline void Dot(const Node& n, const float* const* in, float* out) {
  const int width = n.widths[0];
  for (int b = 0; b < kBatch; ++b) {
    float sum = 0;
    for (int i = 0; i < width; ++i) sum += in[0][b * width + i] * in[1][b * width + i];
    out[b] = sum;
  }
}
inline void Add(const Node& n, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) {
    float sum = 0;
    for (std::size_t i = 0; i < n.inputs.size(); ++i) sum += in[i][b];
    out[b] = sum;
  }
}
inline void Concat(const Node& n, const float* const* in, float* out) {
  int at = 0;
  for (std::size_t i = 0; i < n.inputs.size(); at += n.widths[i++])
    for (int b = 0; b < kBatch; ++b)
      for (int k = 0; k < n.widths[i]; ++k) out[b * n.width + at + k] = in[i][b * n.widths[i] + k];
}
inline void Layer(const Node& n, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) {
    float* row = out + b * n.width;
    for (int i = 0; i < n.width; ++i) row[i] = 0;
    for (int k = 0; k < n.widths[0]; ++k) {
      const float x = in[0][b * n.widths[0] + k];
      const float* weights = n.weights + k * n.width;
      for (int i = 0; i < n.width; ++i) row[i] += x * weights[i];
    }
  }
}
inline void Relu(const Node& n, const float* const* in, float* out) {
  for (int i = 0; i < kBatch * n.width; ++i) out[i] = in[0][i] > 0 ? in[0][i] : 0;
}
inline void Sigmoid(const Node&, const float* const* in, float* out) {
  for (int b = 0; b < kBatch; ++b) out[b] = 1 / (1 + std::exp(-in[0][b]));
}

// --- the model

class Model {
 public:
  Model() {
    std::vector<int> deep, wide, embeddings, ids;
    for (int c = 0; c < kSparse; ++c) {
      const int raw = Append("slice", Slice, {kRequest}, 1, c);
      ids.push_back(Append("hash", Hash, {raw}, 1, c));
      embeddings.push_back(
          Append("normalize", Normalize, {Append("lookup", Lookup, {ids.back()}, kWide, 0, kBuckets)}, kWide));
      wide.push_back(Append("lookup", Lookup, {ids.back()}, 1, 0, kBuckets));
    }
    for (int c = 0; c < kDense; ++c) {
      deep.push_back(Append("log", Log, {Append("slice", Slice, {kRequest}, 1, kSparse + c)}, 1));
      wide.push_back(Append("lookup", Lookup, {Append("bucket", Bucket, {deep.back()}, 1)}, 1, 0, kBuckets));
    }
    for (int c = 0; c < kCrosses; ++c)
      wide.push_back(
          Append("lookup", Lookup, {Append("cross", Cross, {ids[Index(c)], ids[Index(c + 5)]}, 1, c)}, 1, 0, kBuckets));
    std::vector<int> dots;
    for (int c = 0; c < kSparse; ++c)
      dots.push_back(Append("dot", Dot, {embeddings[Index(c)], embeddings[Index((c + 1) % kSparse)]}, 1));
    deep.insert(deep.end(), embeddings.begin(), embeddings.end());
    deep.push_back(Append("concat", Concat, dots, kSparse));
    int layer = Append("concat", Concat, deep, kDense + kSparse * kWide + kSparse);
    for (const int width : {64, 32, 16})
      layer = Append("relu", Relu, {Append("layer", Layer, {layer}, width, 0, nodes_.back().width)}, width);
    layer = Append("layer", Layer, {layer}, 1, 0, 16);
    std::vector<int> sums{layer};
    for (std::size_t i = 0; i < wide.size(); i += 8)
      sums.push_back(Append("add", Add,
                            {wide.begin() + static_cast<std::ptrdiff_t>(i),
                             wide.begin() + static_cast<std::ptrdiff_t>(std::min(i + 8, wide.size()))},
                            1));
    Append("sigmoid", Sigmoid, {Append("add", Add, sums, 1)}, 1);
  }

  const std::vector<Node>& nodes() const { return nodes_; }
  static std::vector<float> Request(uint32_t number) {
    std::vector<float> request(kBatch * kColumns);
    for (std::size_t i = 0; i < request.size(); ++i) {
      number = number * 1664525 + 1013904223;
      request[i] = static_cast<float>(i % kColumns < kSparse ? number >> 12 : (number >> 22) + 1);
    }
    return request;
  }

 private:
  static std::size_t Index(int i) { return static_cast<std::size_t>(i); }
  int Append(const char* kind, Node::Run run, std::vector<int> inputs, int width, int column = 0, int rows = 0) {
    Node node{kind, run, std::move(inputs), {}, width, column, nullptr};
    for (const int input : node.inputs)
      node.widths.push_back(input == kRequest ? kColumns : nodes_[Index(input)].width);
    if (rows) {
      std::vector<float>& weights = weights_.emplace_back(Index(rows) * Index(width));
      uint32_t seed = static_cast<uint32_t>(nodes_.size());
      for (float& w : weights) {
        seed = seed * 1664525 + 1013904223;
        w = static_cast<float>(seed >> 8) / (1 << 23) / 16 - 1.0f / 16;
      }
      node.weights = weights.data();
    }
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size()) - 1;
  }

  std::vector<Node> nodes_;
  std::deque<std::vector<float>> weights_;
};

// Loop: no executor. It calls the kernels in a row, and everything has a fixed place. Each client has its own.
class Loop {
 public:
  explicit Loop(const Model& model) {
    values_.reserve(model.nodes().size());
    for (const Node& node : model.nodes()) {
      values_.emplace_back(static_cast<std::size_t>(kBatch * node.width));
      Step step{&node, {}};
      for (const int input : node.inputs)
        step.in.push_back(input == kRequest ? nullptr : values_[static_cast<std::size_t>(input)].data());
      steps_.push_back(std::move(step));
    }
  }
  const float* Run(const float* request) {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      Step& step = steps_[i];
      if (step.node->inputs[0] == kRequest) step.in[0] = request;
      step.node->run(*step.node, step.in.data(), values_[i].data());
    }
    return values_.back().data();
  }

 private:
  struct Step {
    const Node* node;
    std::vector<const float*> in;
  };
  std::vector<std::vector<float>> values_;
  std::vector<Step> steps_;
};

}  // namespace perf::serving
