#include "crossing.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "engine/device/device.h"

namespace engine::detail {
namespace {

// Alignment of an array in a packed buffer: that of an allocation on a CUDA device, so that kernels may load whole
// lines.
constexpr size_t kAlignment = 256;

// The body of a copy node. Threads: runs that overlap call it on threads of a copy lane.
struct Copy {
  std::shared_ptr<const CrossingArrays> arrays;
  int device;
  std::vector<Name> names;  // of its inputs, by position
  std::vector<bool> last;   // by position: nobody else needs the input

  void operator()(NodeContext& ctx) const {
    std::vector<Crossing> values;
    for (size_t i = 0; i < names.size(); ++i)
      values.push_back({.name = names[i], .from = ctx.In(i), .to = ctx.Out(i), .last = last[i]});
    arrays->Find(values);
    size_t end = 0;
    for (const Crossing& value : values)
      for (const HostArray& array : value.arrays) end = Aligned(end) + array.bytes();
    // Given back at the end of this body, behind the copy: it is not written again before the copy has ended.
    const DeviceMemory pinned = end > 0 ? ctx.AllocatePinned(end) : DeviceMemory();
    const auto memory = std::make_shared<const DeviceMemory>(end > 0 ? ctx.Allocate(end) : DeviceMemory());
    size_t at = 0;
    for (Crossing& value : values) {
      for (const HostArray& array : value.arrays) {
        at = Aligned(at);
        if (array.bytes() > 0) std::memcpy(static_cast<std::byte*>(pinned.data()) + at, array.address(), array.bytes());
        void* const there = memory->data() ? static_cast<std::byte*>(memory->data()) + at : nullptr;
        value.copies.emplace_back(array.type(), array.shape(), there, memory, device);
        at += array.bytes();
      }
    }
    if (end > 0) {
      DeviceStatus status = ctx.device().CopyIn(memory->data(), pinned.data(), end, ctx.stream(), MemoryKind::kPinned);
      if (!status.ok()) throw DeviceError(std::move(status));
    }
    arrays->Replace(values);
  }

 private:
  static size_t Aligned(size_t at) { return (at + kAlignment - 1) / kAlignment * kAlignment; }
};

NodeDesc CopyDesc(int device, std::vector<ValueId> inputs) {
  const auto outputs = static_cast<uint32_t>(inputs.size());
  return {.name = Name::Intern("copy to gpu " + std::to_string(device)),
          .inputs = std::move(inputs),
          .outputs = outputs,
          .place = CopyIn(static_cast<uint16_t>(device))};
}

bool OnHost(const Graph& graph, ValueId value) {
  const uint32_t from = graph.values()[value.index].producer;
  if (from == UINT32_MAX) return true;
  const Placement::Kind kind = graph.nodes()[from].place.kind;
  return kind != Placement::Kind::kGpu && kind != Placement::Kind::kCopyIn;
}

bool IsOn(const Graph::Node& node, int device) {
  return node.place.kind == Placement::Kind::kGpu && node.place.index == device;
}

// Whether only the copy to `device` needs the value.
bool OnlyFor(const Graph& graph, ValueId value, int device) {
  const auto& consumers = graph.values()[value.index].consumers;
  return std::all_of(consumers.begin(), consumers.end(), [&](uint32_t n) { return IsOn(graph.nodes()[n], device); }) &&
         std::find(graph.outputs().begin(), graph.outputs().end(), value) == graph.outputs().end();
}

}  // namespace

Copying WithCopies(const Graph& step, std::shared_ptr<const CrossingArrays> arrays) {
  Copying out;
  out.values.resize(step.values().size());
  for (ValueId input : step.inputs()) {
    const Graph::ValueInfo& info = step.values()[input.index];
    out.values[input.index] = out.graph.Input(info.name, info.type);
  }
  std::map<std::pair<uint32_t, int>, ValueId> copied;  // (value of the step, device) -> its copy
  std::vector<NodeId> ids;
  std::vector<ValueId> inputs;
  for (uint32_t n = 0; n < step.nodes().size(); ++n) {
    const Graph::Node& node = step.nodes()[n];
    inputs.clear();
    for (ValueId value : node.inputs) {
      const ValueId here = out.values[value.index];
      inputs.push_back(here);
      if (node.place.kind != Placement::Kind::kGpu || !OnHost(step, value)) continue;
      const int device = node.place.index;
      const auto [found, fresh] = copied.try_emplace({value.index, device});
      if (fresh) {
        found->second = out.graph.Add(CopyDesc(device, {here}),
                                      Copy{.arrays = arrays,
                                           .device = device,
                                           .names = {step.values()[value.index].name},
                                           .last = {OnlyFor(step, value, device)}},
                                      node.site)[0];
        out.copies.push_back(true);
      }
      inputs.back() = found->second;
    }
    ids.push_back(out.graph.AddCopy(step, n, inputs));
    out.nodes.push_back(ids.back().index);
    out.copies.push_back(false);
    for (uint32_t i = 0; i < node.outputs.size(); ++i) out.values[node.outputs[i].index] = ids.back()[i];
  }
  for (const Graph::Edge& e : step.Edges())
    if (e.kind == Graph::Edge::Kind::kOrder) out.graph.Order(ids[e.from], ids[e.to]);
  for (ValueId value : step.outputs()) out.graph.Output(out.values[value.index]);
  return out;
}

Graph PackedCopies(const Graph& step, const std::vector<bool>& part, std::span<const ValueId> in,
                   std::span<const ValueId> out, std::shared_ptr<const CrossingArrays> arrays) {
  Graph packed;
  std::vector<ValueId> here(step.values().size());
  for (ValueId v : in) here[v.index] = packed.Input(step.values()[v.index].name, step.values()[v.index].type);
  std::map<int, std::vector<uint32_t>> by_device;
  std::vector<int> needed(step.values().size(), 0);
  for (ValueId v : out) ++needed[v.index];
  for (uint32_t n = 0; n < part.size(); ++n) {
    if (!part[n]) continue;
    by_device[step.nodes()[n].place.index].push_back(n);
    ++needed[step.nodes()[n].inputs[0].index];
  }
  for (const auto& [device, nodes] : by_device) {
    Copy copy{.arrays = arrays, .device = device, .names = {}, .last = {}};
    std::vector<ValueId> inputs;
    for (uint32_t n : nodes) {
      const ValueId value = step.nodes()[n].inputs[0];
      inputs.push_back(here[value.index]);
      copy.names.push_back(step.values()[value.index].name);
      copy.last.push_back(needed[value.index] == 1);
    }
    const NodeId id = packed.Add(CopyDesc(device, std::move(inputs)), std::move(copy), step.nodes()[nodes[0]].site);
    for (uint32_t i = 0; i < nodes.size(); ++i) here[step.nodes()[nodes[i]].outputs[0].index] = id[i];
  }
  for (ValueId v : out) packed.Output(here[v.index]);
  return packed;
}

}  // namespace engine::detail
