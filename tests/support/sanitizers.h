// SPDX-License-Identifier: Apache-2.0
#pragma once

// WR_ASAN, WR_TSAN: whether AddressSanitizer or ThreadSanitizer checks this build. GCC says so with macros, clang with
// features.
#if defined(__SANITIZE_ADDRESS__)
#define WR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WR_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define WR_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WR_TSAN 1
#endif
#endif
#ifndef WR_ASAN
#define WR_ASAN 0
#endif
#ifndef WR_TSAN
#define WR_TSAN 0
#endif
