#include <cstdint>

#include "export.h"
#ifdef __linux__
#include <sys/mman.h>
#endif

// Asks for huge pages under an array: random rows of a large table then cost fewer page walks. Best effort.
EXPORT void use_huge_pages(char* start, int64_t bytes) {
#ifdef __linux__
  constexpr int COLLAPSE = 25;  // MADV_COLLAPSE, Linux 6.1: moves pages that are in use already
  constexpr intptr_t PAGE = 4096;
  const auto first = (reinterpret_cast<intptr_t>(start) + PAGE - 1) / PAGE * PAGE;
  const auto length = (reinterpret_cast<intptr_t>(start) + bytes) / PAGE * PAGE - first;
  if (length <= 0) return;
  madvise(reinterpret_cast<void*>(first), length, MADV_HUGEPAGE);
  madvise(reinterpret_cast<void*>(first), length, COLLAPSE);
#endif
}
