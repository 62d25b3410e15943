// Few: a list that needs no memory of its own while it is short, as the lists of a call are.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace engine_python {

template <class T, size_t kFew>
class Few {
 public:
  void push_back(T item) {
    if (many_.empty() && size_ < kFew) {
      few_[size_++] = std::move(item);
      return;
    }
    if (many_.empty()) many_.assign(std::make_move_iterator(few_.begin()), std::make_move_iterator(few_.end()));
    many_.push_back(std::move(item));
    size_ = many_.size();
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return many_.empty() ? few_.data() : many_.data(); }
  const T* data() const { return many_.empty() ? few_.data() : many_.data(); }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  const T& operator[](size_t i) const { return data()[i]; }

 private:
  std::array<T, kFew> few_{};
  std::vector<T> many_;
  size_t size_ = 0;
};

}  // namespace engine_python
