#include "device/software/executor.h"

#include "order/error_record.h"

namespace engine::detail {
namespace {
thread_local bool t_inside_kernel = false;

DeviceStatus Describe(const std::string& kernel, const std::exception_ptr& error) {
  const std::string failed = "kernel '" + kernel + "' failed: ";
  try {
    std::rethrow_exception(error);
  } catch (const DeviceError& e) {
    return DeviceStatus::Fail(e.status().code(), true, e.status().native_code(), failed + e.what());
  } catch (...) {
    return DeviceStatus::Fail(DeviceCode::kLaunchFailed, true, 0, failed + DescribeException(error));
  }
}
}  // namespace

bool InsideKernel() noexcept { return t_inside_kernel; }

bool Executor::RunBody(const SoftwareKernel& work, DeviceStatus* failure) {
  if (!work.body) return true;
  t_inside_kernel = true;
  bool good = true;
  try {
    work.body();
  } catch (...) {
    try {
      *failure = Describe(work.name, std::current_exception());
    } catch (const std::bad_alloc&) {  // there is no memory to say more
      *failure = DeviceStatus::Fail(DeviceCode::kLaunchFailed, true, 0, "");
    }
    good = false;
  }
  t_inside_kernel = false;
  return good;
}

}  // namespace engine::detail
