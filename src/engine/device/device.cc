// What all devices share: the text of a status, and their names.
#include "engine/device/device.h"

#include <charconv>
#include <iterator>

#include "device/body_scope.h"
#include "engine/testing/software_device.h"

namespace engine {

namespace detail {

thread_local constinit BodyScope* BodyScope::current_ = nullptr;

std::string BodyScope::Where() const {
  std::string text = " in the body of op '" + std::string(op_) + "' pushed at " + site_.file + ":" +
                     std::to_string(site_.line) + ", which is on a device";
  if (bulk_) text += " and in the bulk that began with op '" + std::string(bulk_) + "'";
  return text;
}

DeviceStatus BodyScope::Describe(const char* call) const {
  return DeviceStatus::Fail(DeviceCode::kSyncInBody, false, 0,
                            call + Where() + ": issue the work and return; whoever needs the result waits");
}

DeviceStatus BodyScope::DescribeStray() const {
  return DeviceStatus::Fail(DeviceCode::kWrongStream, false, 0,
                            "'" + strays_[0].name + "'" + Where() +
                                ", went to another stream than the op's, which did not come to wait for it: the op "
                                "would be over before its work. Use ctx.stream(), or have that wait for an event "
                                "behind the work");
}

void BodyScope::NoteStray(const std::string& name, Place at) {
  if (!current_) return;
  for (Stray& s : current_->strays_)
    if (s.at.lane == at.lane) {
      s.at.end = at.end;
      return;
    }
  current_->strays_.push_back({name, at});
}

void BodyScope::NoteJoin(Place from, Place to) {
  if (!current_) return;
  for (Stray& s : current_->strays_)
    if (s.at.lane == from.lane && s.at.end <= from.end) s.at = to;
  std::erase_if(current_->strays_, [](const Stray& s) { return !s.at.lane; });
}

}  // namespace detail

Device::~Device() = default;

const char* DeviceCodeName(DeviceCode code) noexcept {
  // clang-format off
  static constexpr const char* kNames[] = {
      "kOk", "kNotReady", "kInvalidValue", "kInvalidHandle", "kWrongMemory", "kSyncInBody", "kWrongStream",
      "kOutOfMemory", "kNoDevice", "kUnsupported", "kLaunchFailed", "kIllegalAddress", "kDeviceFault", "kCaptureMode",
      "kCaptureUnsupported", "kCaptureInvalidated", "kCaptureMerge", "kCaptureUnmatched", "kCaptureUnjoined",
      "kCaptureIsolation", "kCaptureWrongThread", "kCapturedEvent", "kGraphUpdateFailed", "kUnknown"};
  // clang-format on
  static_assert(std::size(kNames) == static_cast<size_t>(DeviceCode::kUnknown) + 1);
  return code <= DeviceCode::kUnknown ? kNames[static_cast<size_t>(code)] : "no DeviceCode";
}

namespace {

// The backends by the kind that begins a device's name: a row for each.
struct Backend {
  std::string_view kind;
  std::shared_ptr<Device> (*make)(int ordinal);
};
constexpr Backend kBackends[] = {
    {"cuda", [](int ordinal) { return MakeCudaDevice(ordinal); }},
    {"software", [](int ordinal) -> std::shared_ptr<Device> { return MakeSoftwareDevice({.ordinal = ordinal}); }},
};

}  // namespace

std::shared_ptr<Device> MakeDevice(std::string_view name) {
  const std::string_view kind = name.substr(0, name.find(':'));
  const std::string_view number = kind == name ? "0" : name.substr(kind.size() + 1);
  int ordinal = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ordinal);
  const bool is_number = error == std::errc{} && end == number.data() + number.size() && ordinal >= 0;
  std::string kinds;
  for (const Backend& backend : kBackends) {
    if (backend.kind == kind && is_number) return backend.make(ordinal);
    kinds += (kinds.empty() ? "\"" : ", \"") + std::string(backend.kind) + "\"";
  }
  throw UsageError("there is no device '" + std::string(name) + "'; allowed: " + kinds +
                   ", or one of these with a number, as \"cuda:1\"");
}

std::string DeviceStatus::text() const {
  if (ok()) return "ok";
  std::string text = DeviceCodeName(code_);
  if (text_) text += ": " + *text_;
  if (sticky_) text += " (the device is lost)";
  return text;
}

}  // namespace engine
