// Compiled once per level, with LEVEL its name: everything lies in a namespace of that name, or the linker would take
// one level's functions for another's.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "kernels.h"

namespace LEVEL {

#include "../../kernels/cpp/chain.h"

#include "head.h"
#include "pool.h"
#include "encoder.h"
#include "attend.h"
#include "recur.h"

bool is_supported() {
#if defined(__AVX512BF16__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#elif defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512cd");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c");
#else
  return true;
#endif
}

#define NAME_OF(level) #level
#define NAME(level) NAME_OF(level)
extern const Kernels KERNELS;
const Kernels KERNELS{NAME(LEVEL), is_supported, plan,     pack,     encode, scan,
                      add_row_of,  add_rows,     prepare,  multiply, activate, linear, attend, recur};

}  // namespace LEVEL
