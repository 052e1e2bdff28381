// SPDX-License-Identifier: Apache-2.0
#include "base/alloc_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WR_OWN_NEW 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define WR_OWN_NEW 0
#endif
#endif
#ifndef WR_OWN_NEW
#define WR_OWN_NEW 1
#endif

namespace warprow {
namespace {

// operator new reads these, also before main and after static destruction: plain globals on purpose.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
constinit thread_local bool counting = false;
constinit std::atomic<int64_t> allocations{0};
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

}  // namespace

CountAllocations::CountAllocations() : previous_(counting) { counting = true; }
CountAllocations::~CountAllocations() { counting = previous_; }

int64_t counted_allocations() { return allocations.load(std::memory_order_relaxed); }
bool counts_allocations() { return WR_OWN_NEW != 0; }

#if WR_OWN_NEW
namespace {

void* counted_alloc(size_t bytes, size_t alignment) {
  if (counting) {
    allocations.fetch_add(1, std::memory_order_relaxed);
  }
  const size_t size = bytes == 0 ? 1 : bytes;
  for (;;) {
    void* memory =
        alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
            ? std::malloc(size)
            : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (memory != nullptr) {
      return memory;
    }
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) {
      throw std::bad_alloc();
    }
    handler();
  }
}

}  // namespace
#endif

}  // namespace warprow

#if WR_OWN_NEW
void* operator new(size_t bytes) { return warprow::counted_alloc(bytes, 0); }
void* operator new[](size_t bytes) { return warprow::counted_alloc(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return warprow::counted_alloc(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return warprow::counted_alloc(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
#endif
