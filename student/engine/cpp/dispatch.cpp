// Which level of instructions is used: the best one that this processor has, up to the one in DISTILL_LEVEL.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

#define DECLARE(level)            \
  namespace level {               \
  extern const Kernels KERNELS;   \
  }

DECLARE(portable)

#if defined(__x86_64__)

DECLARE(avx2)
DECLARE(avx512)
DECLARE(avx512bf16)

namespace {

const Kernels& chosen() {
  const Kernels* const levels[] = {&portable::KERNELS, &avx2::KERNELS, &avx512::KERNELS, &avx512bf16::KERNELS};
  const char* limit = std::getenv("DISTILL_LEVEL");
  const Kernels* best = levels[0];
  for (const Kernels* level : levels) {
    if (!level->is_supported()) break;
    best = level;
    if (limit && std::strcmp(limit, level->name) == 0) break;
  }
  return *best;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& best = chosen();
  return best;
}

#else

const Kernels& kernels() { return portable::KERNELS; }

#endif
