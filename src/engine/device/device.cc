// What all devices share: the text of a status, and their names.
#include "engine/device.h"

#include <charconv>

#include "device/body_scope.h"
#include "engine/software_device.h"

namespace engine {

namespace detail {

thread_local constinit BodyScope* BodyScope::current_ = nullptr;

DeviceStatus BodyScope::Describe(const char* call) const {
  std::string text = std::string(call) + " in the body of op '" + op_ + "' pushed at " + site_.file + ":" +
                     std::to_string(site_.line) + ", which is on a device";
  if (bulk_) text += " and in the bulk that began with op '" + std::string(bulk_) + "'";
  return DeviceStatus::Fail(DeviceCode::kSyncInBody, false, 0,
                            text + ": issue the work and return; whoever needs the result waits");
}

}  // namespace detail

Device::~Device() = default;

const char* DeviceCodeName(DeviceCode code) noexcept {
  switch (code) {
    case DeviceCode::kOk: return "kOk";
    case DeviceCode::kNotReady: return "kNotReady";
    case DeviceCode::kInvalidValue: return "kInvalidValue";
    case DeviceCode::kInvalidHandle: return "kInvalidHandle";
    case DeviceCode::kWrongMemory: return "kWrongMemory";
    case DeviceCode::kSyncInBody: return "kSyncInBody";
    case DeviceCode::kOutOfMemory: return "kOutOfMemory";
    case DeviceCode::kNoDevice: return "kNoDevice";
    case DeviceCode::kUnsupported: return "kUnsupported";
    case DeviceCode::kLaunchFailed: return "kLaunchFailed";
    case DeviceCode::kIllegalAddress: return "kIllegalAddress";
    case DeviceCode::kDeviceFault: return "kDeviceFault";
    case DeviceCode::kCaptureMode: return "kCaptureMode";
    case DeviceCode::kCaptureUnsupported: return "kCaptureUnsupported";
    case DeviceCode::kCaptureInvalidated: return "kCaptureInvalidated";
    case DeviceCode::kCaptureMerge: return "kCaptureMerge";
    case DeviceCode::kCaptureUnmatched: return "kCaptureUnmatched";
    case DeviceCode::kCaptureUnjoined: return "kCaptureUnjoined";
    case DeviceCode::kCaptureIsolation: return "kCaptureIsolation";
    case DeviceCode::kCaptureWrongThread: return "kCaptureWrongThread";
    case DeviceCode::kCapturedEvent: return "kCapturedEvent";
    case DeviceCode::kGraphUpdateFailed: return "kGraphUpdateFailed";
    case DeviceCode::kUnknown: return "kUnknown";
  }
  return "no DeviceCode";
}

std::shared_ptr<Device> MakeDevice(std::string_view name) {
  if (name == "software") return MakeSoftwareDevice();
  if (name == "cuda") return MakeCudaDevice(0);
  int ordinal = -1;
  const std::string_view number = name.starts_with("cuda:") ? name.substr(5) : "";
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ordinal);
  if (number.empty() || error != std::errc{} || end != number.data() + number.size() || ordinal < 0)
    throw UsageError("there is no device '" + std::string(name) + "'; \"cuda\", \"cuda:1\", \"software\" are known");
  return MakeCudaDevice(ordinal);
}

std::string DeviceStatus::text() const {
  if (ok()) return "ok";
  std::string text = DeviceCodeName(code_);
  if (text_) text += ": " + *text_;
  if (sticky_) text += " (the device is lost)";
  return text;
}

}  // namespace engine
