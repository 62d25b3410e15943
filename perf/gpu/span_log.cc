#include "span_log.h"

namespace engine::perf {

SpanLog::SpanLog() {
  void* memory = nullptr;
  MustCuda("cudaMalloc", cudaMalloc(&memory, kSpans * sizeof(Stamp)));
  stamps_ = static_cast<Stamp*>(memory);
}

SpanLog::~SpanLog() { (void)cudaFree(stamps_); }

Stamp* SpanLog::Next(cudaStream_t stream, const char* name) {
  const std::lock_guard lock(mu_);
  if (spans_.size() == kSpans) return nullptr;
  const auto lane = lanes_.emplace(stream, static_cast<uint32_t>(lanes_.size())).first->second;
  spans_.push_back({lane, name, 0, 0});
  return stamps_ + (spans_.size() - 1);
}

void SpanLog::Start() {
  const std::lock_guard lock(mu_);
  spans_.clear();
  lanes_.clear();
  on_.store(true, std::memory_order_relaxed);
}

std::vector<Span> SpanLog::Stop() {
  const std::lock_guard lock(mu_);
  on_.store(false, std::memory_order_relaxed);
  std::vector<Stamp> stamps(spans_.size());
  if (!stamps.empty())
    MustCuda("cudaMemcpy", cudaMemcpy(stamps.data(), stamps_, stamps.size() * sizeof(Stamp), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < spans_.size(); ++i) {
    spans_[i].start = stamps[i].start;
    spans_[i].end = stamps[i].end;
  }
  return std::move(spans_);
}

}  // namespace engine::perf
