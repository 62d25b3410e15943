// Which sanitizer this was built with, for the few tests that a tool's limits rule out.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ENGINE_UNDER_TSAN 1
#endif
#if __has_feature(address_sanitizer)
#define ENGINE_UNDER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define ENGINE_UNDER_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ENGINE_UNDER_ASAN 1
#endif

namespace engine::test {
#ifdef ENGINE_UNDER_TSAN
inline constexpr bool kUnderTsan = true;
#else
inline constexpr bool kUnderTsan = false;
#endif
#ifdef ENGINE_UNDER_ASAN
inline constexpr bool kUnderAsan = true;
#else
inline constexpr bool kUnderAsan = false;
#endif
inline constexpr bool kSanitized = kUnderTsan || kUnderAsan;
// Whether the engine's threads sleep now and then (base/jitter.h), which makes an op a thousand times slower.
#ifdef ENGINE_JITTER
inline constexpr bool kJittered = true;
#else
inline constexpr bool kJittered = false;
#endif
}  // namespace engine::test
