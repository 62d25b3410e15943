// Nodes of a served program: each makes tensors of a request out of others, in memory that the frame has for it.
//
// Threads:   a frame's nodes are run by one thread at a time.
// Errors:    exceptions of C++; the frame may be used again afterwards.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <string>

#include "serve_math.h"
#include "serve_view.h"

namespace engine_torch::serve {

class Node {
 public:
  virtual ~Node() = default;
  virtual void Resolve(int64_t rows) = 0;  // before Run, when the number of rows is another
  virtual void Run(char* const* bases) = 0;
  virtual void Clear() {}  // after the request: gives back what torch allocated
};

// out = f(a @ b + row). b lies in rows and is the same for all outer dimensions.
class ProductNode final : public Node {
 public:
  ProductNode(View a, View b, std::optional<View> row, View out, Op act)
      : a_(std::move(a)), b_(std::move(b)), out_(std::move(out)), row_(std::move(row)), act_(act) {}

  void Resolve(int64_t rows) override {
    a_at_ = Resolved(a_, rows), b_at_ = Resolved(b_, rows), out_at_ = Resolved(out_, rows);
    if (row_) row_at_ = Resolved(*row_, rows);
    const size_t dims = a_at_.sizes.size();
    columns_ = a_at_.sizes.back(), others_ = out_at_.sizes.back();
    if (act_ != Op::kMove) sums_.resize(static_cast<size_t>(kBlock * others_));
    // The last dimension is a sum's; all before it are rows.
    Place a = a_at_, out = out_at_;
    a.strides.pop_back(), out.strides.pop_back();
    walk_.emplace(std::vector<int64_t>(a_at_.sizes.begin(), a_at_.sizes.begin() + static_cast<int64_t>(dims) - 1),
                  std::vector<const Place*>{&a, &out});
  }

  void Run(char* const* bases) override {
    const auto* a = reinterpret_cast<const float*>(a_at_.In(bases));
    const auto* b = reinterpret_cast<const float*>(b_at_.In(bases));
    const auto* row = row_ ? reinterpret_cast<const float*>(row_at_.In(bases)) : nullptr;
    auto* out = reinterpret_cast<float*>(out_at_.In(bases));
    walk_->Outer([&](const int64_t* at) {
      for (int64_t i = 0; i < walk_->rows(); ++i) {
        Rows(a + at[0] + i * walk_->row_stride(0), walk_->stride(0), b, row, out + at[1] + i * walk_->row_stride(1),
             walk_->stride(1), walk_->inner());
      }
    });
  }

 private:
  static constexpr int64_t kBlock = 64, kSmallBlock = 16;  // rows at once, which the processor's kernel is made for

  void Rows(const float* a, int64_t a_row, const float* b, const float* row, float* out, int64_t out_row,
            int64_t rows) {
    const bool acts = act_ != Op::kMove;
    if (others_ == 1) {
      Dots(a, a_row, b, row ? *row : 0.0F, out, out_row, rows, columns_);
      if (acts)
        for (int64_t i = 0; i < rows; ++i) Act(std::array{out[i * out_row]}.data(), out + i * out_row, 1);
      return;
    }
    for (int64_t i = 0, size; i < rows; i += size) {
      const int64_t left = rows - i;
      size = left >= kBlock ? kBlock : (left > kSmallBlock ? kSmallBlock : left);
      float* const to = out + i * out_row;
      float* const made = acts ? sums_.data() : to;
      const int64_t made_row = acts || out_row == 0 ? others_ : out_row;
      if (row)
        for (int64_t j = 0; j < size; ++j)
          std::memcpy(made + j * made_row, row, static_cast<size_t>(others_) * sizeof(float));
      at::native::cpublas::brgemm(size, others_, columns_, a_row == 0 ? columns_ : a_row,
                                  b_at_.strides[b_at_.strides.size() - 2], made_row, row != nullptr, a + i * a_row, b,
                                  made, false);
      if (!acts) continue;
      if (out_row == others_)
        Act(made, to, size * others_);
      else
        for (int64_t j = 0; j < size; ++j) Act(made + j * others_, to + j * out_row, others_);
    }
  }
  void Act(const float* from, float* to, int64_t n) const {
    kLoops[static_cast<int>(act_)](from, nullptr, nullptr, to, n);
  }

  View a_, b_, out_;
  std::optional<View> row_;
  Op act_;
  Place a_at_, b_at_, out_at_, row_at_;
  std::optional<Walk> walk_;
  int64_t columns_ = 0, others_ = 0;
  std::vector<float> sums_;  // of a block, before f
};

// Rows of tables, straight to where they are needed: all of a request's that depend on nothing but its arguments are one node.
class LookupNode final : public Node {
 public:
  struct Table {
    View table, index, out;
    std::string name, argument;
  };
  explicit LookupNode(std::vector<Table> tables) : tables_(std::move(tables)) {}

  void Resolve(int64_t rows) override {
    at_.clear();
    for (const Table& table : tables_) {
      Place index = Resolved(table.index, rows), out = Resolved(table.out, rows);
      const Place weight = Resolved(table.table, rows);
      const std::vector<int64_t> sizes = index.sizes;
      out.strides.pop_back();
      Walk walk(sizes, {&index, &out});
      at_.push_back({weight, std::move(index), std::move(out), std::move(walk), weight.sizes[0], weight.strides[0],
                     weight.sizes[1] * static_cast<int64_t>(c10::elementSize(table.table.dtype)),
                     static_cast<int64_t>(c10::elementSize(table.table.dtype)), table.index.dtype == at::kInt});
    }
  }

  void Run(char* const* bases) override {
    for (size_t i = 0; i < at_.size(); ++i) at_[i].narrow ? Copy<int32_t>(i, bases) : Copy<int64_t>(i, bases);
  }

 private:
  struct At {
    Place table, index, out;
    Walk walk;
    int64_t count, row, bytes, element;
    bool narrow;
  };
  template <class T>
  void Copy(size_t number, char* const* bases) {
    const At& at = at_[number];
    const char* from = at.table.In(bases);
    const T* index = reinterpret_cast<const T*>(at.index.In(bases));
    char* to = at.out.In(bases);
    at.walk.Outer([&](const int64_t* offsets) {
      for (int64_t i = 0; i < at.walk.rows(); ++i) {
        const T* by = index + offsets[0] + i * at.walk.row_stride(0);
        char* out = to + (offsets[1] + i * at.walk.row_stride(1)) * at.element;
        const int64_t by_stride = at.walk.stride(0), out_stride = at.walk.stride(1) * at.element;
        for (int64_t j = 0; j < at.walk.inner(); ++j) {
          const int64_t row = by[j * by_stride];
          if (static_cast<uint64_t>(row) >= static_cast<uint64_t>(at.count)) Refuse(number, row);
          Row(out + j * out_stride, from + row * at.row * at.element, at.bytes);
        }
      }
    });
  }
  static void Row(char* to, const char* from, int64_t bytes) {
    if (bytes == 64)
      std::memcpy(to, from, 64);
    else if (bytes == 4)
      std::memcpy(to, from, 4);
    else
      std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  [[noreturn]] void Refuse(size_t number, int64_t row) const {
    const Table& table = tables_[number];
    throw c10::IndexError({__func__, __FILE__, __LINE__},
                          "index out of range in self: engine.torch.serve: the index " + std::to_string(row) +
                              (table.argument.empty() ? "" : " of " + table.argument) + " is no row of '" + table.name +
                              "'; 0 to " + std::to_string(at_[number].count - 1) + " are allowed");
  }
  std::vector<Table> tables_;
  std::vector<At> at_;
};

// A chain of pointwise operators over tensors of equal sizes, a block at a time, with what is in between in the nearest cache.
class PointwiseNode final : public Node {
 public:
  struct Step {
    Op op;
    std::array<int32_t, 3> from;  // registers
    int32_t to;
  };
  struct Operand {
    View view;
    int32_t reg;
  };
  PointwiseNode(std::vector<Operand> loads, std::vector<Operand> stores, std::vector<Step> steps,
                std::vector<std::pair<int32_t, float>> constants, int32_t registers)
      : loads_(std::move(loads)),
        stores_(std::move(stores)),
        steps_(std::move(steps)),
        constants_(std::move(constants)),
        memory_(static_cast<size_t>(registers) * kBlock),
        registers_(static_cast<size_t>(registers)) {
    for (const auto& [reg, value] : constants_) std::fill_n(Own(reg), kBlock, value);
    for (int32_t i = 0; i < registers; ++i) registers_[i] = Own(i);
  }

  void Resolve(int64_t rows) override {
    places_.clear();
    for (const Operand& load : loads_) places_.push_back(Resolved(load.view, rows));
    for (const Operand& store : stores_) places_.push_back(Resolved(store.view, rows));
    std::vector<const Place*> places;
    for (const Place& place : places_) places.push_back(&place);
    walk_.emplace(places_.back().sizes, places);
  }

  void Run(char* const* bases) override {
    const int64_t inner = walk_->inner(), rows = walk_->rows();
    const int64_t at_once = std::min(kBlock, inner),
                  rows_at_once = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, at_once));
    walk_->Outer([&](const int64_t* offsets) {
      for (int64_t r = 0; r < rows; r += rows_at_once)
        for (int64_t i = 0; i < inner; i += at_once)
          Block(bases, offsets, r, std::min(rows_at_once, rows - r), i, std::min(at_once, inner - i));
    });
  }

 private:
  static constexpr int64_t kBlock = 512;
  float* Own(int32_t reg) { return memory_.data() + reg * kBlock; }

  void Block(char* const* bases, const int64_t* offsets, int64_t row, int64_t rows, int64_t first, int64_t n) {
    for (size_t i = 0; i < loads_.size(); ++i) Load(i, bases, offsets[i], row, rows, first, n);
    for (const Step& step : steps_) {
      const auto from = [&](int which) { return step.from[which] < 0 ? nullptr : registers_[step.from[which]]; };
      kLoops[static_cast<int>(step.op)](from(0), from(1), from(2), Own(step.to), rows * n);
    }
    for (size_t i = 0; i < stores_.size(); ++i) {
      const size_t k = loads_.size() + i;
      const int64_t row_stride = walk_->row_stride(k), stride = walk_->stride(k);
      const int64_t at = offsets[k] + row * row_stride + first * stride;
      if (stores_[i].view.dtype == at::kBool)
        Store(reinterpret_cast<bool*>(places_[k].In(bases)) + at, stores_[i].reg, rows, row_stride, n, stride);
      else
        Store(reinterpret_cast<float*>(places_[k].In(bases)) + at, stores_[i].reg, rows, row_stride, n, stride);
    }
  }
  template <class T>
  void Store(T* to, int32_t reg, int64_t rows, int64_t row_stride, int64_t n, int64_t stride) {
    const float* from = registers_[reg];
    for (int64_t j = 0; j < rows; ++j, from += n, to += row_stride) {
      if (std::is_same_v<T, float> && stride == 1)
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
      else
        for (int64_t i = 0; i < n; ++i) to[i * stride] = static_cast<T>(from[i]);
    }
  }
  void Load(size_t which, char* const* bases, int64_t offset, int64_t row, int64_t rows, int64_t first, int64_t n) {
    const int64_t row_stride = walk_->row_stride(which), stride = walk_->stride(which);
    const int64_t at = offset + row * row_stride + first * stride;
    const int32_t reg = loads_[which].reg;
    char* base = places_[which].In(bases);
    switch (loads_[which].view.dtype) {
      case at::kFloat: {
        const auto* from = reinterpret_cast<const float*>(base) + at;
        if (stride == 1 && (rows == 1 || row_stride == n)) {
          registers_[reg] = const_cast<float*>(from);
          return;
        }
        return Gather(from, reg, rows, row_stride, n, stride);
      }
      case at::kBool: return Gather(reinterpret_cast<const bool*>(base) + at, reg, rows, row_stride, n, stride);
      default: return Gather(reinterpret_cast<const int64_t*>(base) + at, reg, rows, row_stride, n, stride);
    }
  }
  template <class T>
  void Gather(const T* from, int32_t reg, int64_t rows, int64_t row_stride, int64_t n, int64_t stride) {
    float* to = registers_[reg] = Own(reg);
    for (int64_t j = 0; j < rows; ++j, from += row_stride, to += n) {
      if constexpr (std::is_same_v<T, float>) {
        if (stride == 1)
          std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
        else if (stride == 0)
          std::fill_n(to, n, *from);
        else
          for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride];
      } else {  // of whole numbers only whether they are 0 is asked
        if (stride == 0)
          std::fill_n(to, n, *from != 0 ? 1.0F : 0.0F);
        else
          for (int64_t i = 0; i < n; ++i) to[i] = from[i * stride] != 0 ? 1.0F : 0.0F;
      }
    }
  }

  std::vector<Operand> loads_, stores_;
  std::vector<Step> steps_;
  std::vector<std::pair<int32_t, float>> constants_;
  std::vector<float> memory_;
  std::vector<float*> registers_;
  std::vector<Place> places_;
  std::optional<Walk> walk_;
};

// Sums over some dimensions, of which the output's view has strides of 0.
class ReduceNode final : public Node {
 public:
  enum class Kind : int32_t { kSum, kMean, kNorm, kMost };
  ReduceNode(View from, View to, Kind kind) : from_(std::move(from)), to_(std::move(to)), kind_(kind) {}

  void Resolve(int64_t rows) override {
    from_at_ = Resolved(from_, rows), to_at_ = Resolved(to_, rows);
    // Dimensions that are kept come first, so that the walk's outer ones are those.
    Place from = from_at_, to = to_at_, from_kept = from, to_kept = to;
    for (Place* place : {&from, &to, &from_kept, &to_kept}) place->sizes.clear(), place->strides.clear();
    for (size_t d = 0; d < from_at_.sizes.size(); ++d) {
      const bool kept = to_at_.strides[d] != 0;
      Place &f = kept ? from_kept : from, &t = kept ? to_kept : to;
      f.sizes.push_back(from_at_.sizes[d]), f.strides.push_back(from_at_.strides[d]);
      t.sizes.push_back(from_at_.sizes[d]), t.strides.push_back(to_at_.strides[d]);
    }
    kept_.emplace(from_kept.sizes, std::vector<const Place*>{&from_kept, &to_kept});
    summed_.emplace(from.sizes, std::vector<const Place*>{&from});
    count_ = Count(from.sizes);
  }

  void Run(char* const* bases) override {
    const auto* from = reinterpret_cast<const float*>(from_at_.In(bases));
    auto* to = reinterpret_cast<float*>(to_at_.In(bases));
    // Where what is kept lies side by side, whole rows are added.
    const bool by_rows =
        kept_->stride(0) == 1 && kept_->stride(1) == 1 && (kind_ == Kind::kSum || kind_ == Kind::kMean);
    kept_->Outer([&](const int64_t* at) {
      for (int64_t i = 0; i < kept_->rows(); ++i) {
        const float* source = from + at[0] + i * kept_->row_stride(0);
        float* target = to + at[1] + i * kept_->row_stride(1);
        if (by_rows) {
          Rows(source, target);
        } else {
          for (int64_t j = 0; j < kept_->inner(); ++j)
            target[j * kept_->stride(1)] = One(source + j * kept_->stride(0));
        }
      }
    });
  }

 private:
  void Rows(const float* from, float* to) const {
    const int64_t n = kept_->inner();
    std::fill_n(to, n, 0.0F);
    summed_->Outer([&](const int64_t* at) {
      for (int64_t i = 0; i < summed_->rows(); ++i)
        for (int64_t j = 0; j < summed_->inner(); ++j)
          AddTo(from + at[0] + i * summed_->row_stride(0) + j * summed_->stride(0), to, n);
    });
    if (kind_ == Kind::kMean) Scale(to, 1.0F / static_cast<float>(count_), n);
  }
  float One(const float* from) const {
    float sum = kind_ == Kind::kMost ? -std::numeric_limits<float>::infinity() : 0.0F;
    const int64_t n = summed_->inner(), stride = summed_->stride(0);
    summed_->Outer([&](const int64_t* at) {
      for (int64_t i = 0; i < summed_->rows(); ++i) {
        const float* run = from + at[0] + i * summed_->row_stride(0);
        if (stride == 1 && kind_ != Kind::kMost) {
          sum += kind_ == Kind::kNorm ? SumOfSquares(run, n) : Sum(run, n);
        } else {
          for (int64_t j = 0; j < n; ++j) {
            const float x = run[j * stride];
            if (kind_ == Kind::kMost)
              sum = x > sum || x != x ? x : sum;
            else
              sum += kind_ == Kind::kNorm ? x * x : x;
          }
        }
      }
    });
    if (kind_ == Kind::kMean) return sum / static_cast<float>(count_);
    return kind_ == Kind::kNorm ? std::sqrt(sum) : sum;
  }
  View from_, to_;
  Kind kind_;
  Place from_at_, to_at_;
  std::optional<Walk> kept_, summed_;
  int64_t count_ = 1;
};

// Softmax over the last dimension, whose numbers lie side by side.
class SoftmaxNode final : public Node {
 public:
  SoftmaxNode(View from, View to) : from_(std::move(from)), to_(std::move(to)) {}
  void Resolve(int64_t rows) override {
    from_at_ = Resolved(from_, rows), to_at_ = Resolved(to_, rows);
    n_ = from_at_.sizes.back();
    Place from = from_at_, to = to_at_;
    from.sizes.pop_back(), from.strides.pop_back(), to.strides.pop_back();
    walk_.emplace(from.sizes, std::vector<const Place*>{&from, &to});
  }
  void Run(char* const* bases) override {
    if (n_ == 0) return;
    const auto* from = reinterpret_cast<const float*>(from_at_.In(bases));
    auto* to = reinterpret_cast<float*>(to_at_.In(bases));
    walk_->Outer([&](const int64_t* at) {
      for (int64_t i = 0; i < walk_->rows(); ++i)
        for (int64_t j = 0; j < walk_->inner(); ++j) {
          const float* source = from + at[0] + i * walk_->row_stride(0) + j * walk_->stride(0);
          float* target = to + at[1] + i * walk_->row_stride(1) + j * walk_->stride(1);
          ExpLess(source, Most(source, n_), target, n_);
          Scale(target, 1.0F / Sum(target, n_), n_);
        }
    });
  }

 private:
  View from_, to_;
  Place from_at_, to_at_;
  std::optional<Walk> walk_;
  int64_t n_ = 0;
};

// A copy of elements of any type.
class CopyNode final : public Node {
 public:
  CopyNode(View from, View to) : from_(std::move(from)), to_(std::move(to)) {}
  void Resolve(int64_t rows) override {
    from_at_ = Resolved(from_, rows), to_at_ = Resolved(to_, rows);
    walk_.emplace(to_at_.sizes, std::vector<const Place*>{&from_at_, &to_at_});
    bytes_ = static_cast<int64_t>(c10::elementSize(to_.dtype));
  }
  void Run(char* const* bases) override { Copy(*walk_, from_at_.In(bases), to_at_.In(bases), bytes_); }
  static void Copy(const Walk& walk, const char* from, char* to, int64_t bytes) {
    walk.Outer([&](const int64_t* at) {
      for (int64_t i = 0; i < walk.rows(); ++i)
        One(walk, from + (at[0] + i * walk.row_stride(0)) * bytes, to + (at[1] + i * walk.row_stride(1)) * bytes,
            bytes);
    });
  }

 private:
  static void One(const Walk& walk, const char* from, char* to, int64_t bytes) {
    const int64_t n = walk.inner(), a = walk.stride(0), b = walk.stride(1);
    if (a == 1 && b == 1)
      std::memcpy(to, from, static_cast<size_t>(n * bytes));
    else if (bytes == 4)
      Each<int32_t>(from, a, to, b, n);
    else if (bytes == 8)
      Each<int64_t>(from, a, to, b, n);
    else
      for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * b * bytes, from + i * a * bytes, static_cast<size_t>(bytes));
  }
  template <class T>
  static void Each(const char* from, int64_t a, char* to, int64_t b, int64_t n) {
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<T*>(to)[i * b] = reinterpret_cast<const T*>(from)[i * a];
  }
  View from_, to_;
  Place from_at_, to_at_;
  std::optional<Walk> walk_;
  int64_t bytes_ = 0;
};

}  // namespace engine_torch::serve
