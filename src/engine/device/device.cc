// What all devices share: the text of a status.
#include "engine/device.h"

namespace engine {

Device::~Device() = default;

const char* DeviceCodeName(DeviceCode code) noexcept {
  switch (code) {
    case DeviceCode::kOk: return "kOk";
    case DeviceCode::kNotReady: return "kNotReady";
    case DeviceCode::kInvalidValue: return "kInvalidValue";
    case DeviceCode::kInvalidHandle: return "kInvalidHandle";
    case DeviceCode::kWrongMemory: return "kWrongMemory";
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

std::string DeviceStatus::text() const {
  if (ok()) return "ok";
  std::string text = DeviceCodeName(code_);
  if (text_) text += ": " + *text_;
  if (sticky_) text += " (the device is lost)";
  return text;
}

}  // namespace engine
