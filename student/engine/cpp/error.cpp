#include "error.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

thread_local char last_error[512];

}  // namespace

const char* distill_last_error(void) { return last_error; }

distill_status failed(distill_status status, const char* message) {
  const size_t length = std::min(std::strlen(message), sizeof last_error - 1);
  std::memcpy(last_error, message, length);
  last_error[length] = 0;
  return status;
}

#ifndef __wasm__

void fail(distill_status status, const std::string& message) { throw Error(status, message); }

#else

namespace {

// The caller in JavaScript sees a trap, and reads the message.
[[noreturn]] void stop(distill_status status, const char* message) {
  failed(status, message);
  __builtin_trap();
}

void* or_stop(void* memory) {
  if (!memory) stop(DISTILL_MEMORY, "there is no memory left");
  return memory;
}

}  // namespace

void fail(distill_status status, const std::string& message) { stop(status, message.c_str()); }

// The C++ library would print its last words. Printing needs functions of the host, and the engine imports none.
[[noreturn]] void std::__libcpp_verbose_abort(const char*, ...) noexcept { stop(DISTILL_INTERNAL, "something failed"); }
void* operator new(size_t size) { return or_stop(std::malloc(size)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return or_stop(std::aligned_alloc(static_cast<size_t>(alignment), size));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }

#endif
