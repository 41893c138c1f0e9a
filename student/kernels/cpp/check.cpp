// Nothing outside a table is ever read: ids and starts are looked at before anything else.
#include "batch.h"
#include "export.h"

// The position of the first id that is no row of the tables, or -1.
EXPORT int64_t first_wrong_id(const Batch* batch) {
  const int64_t rows = batch->height;
  uint64_t largest = 0;  // a negative id becomes huge as an unsigned number, so one comparison finds both errors
  for (int64_t t = 0; t < batch->tokens; t++) largest = std::max(largest, static_cast<uint64_t>(batch->ids[t]));
  if (batch->tokens == 0 || largest < static_cast<uint64_t>(rows)) return -1;
  const int64_t* end = batch->ids + batch->tokens;
  return std::find_if(batch->ids, end, [=](int64_t id) { return id < 0 || id >= rows; }) - batch->ids;
}

// The position of the first start that is before another or does not fit to the tokens, or -1.
EXPORT int64_t first_wrong_start(const Batch* batch) {
  const int64_t* starts = batch->starts;
  if (starts[0] != 0) return 0;
  for (int64_t n = 1; n <= batch->sequences; n++)
    if (starts[n] < starts[n - 1] || starts[n] > batch->tokens) return n;
  return starts[batch->sequences] == batch->tokens ? -1 : batch->sequences;
}

// Whether this processor has the instructions that these kernels were compiled to.
EXPORT bool is_supported() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
#else
  return true;
#endif
}

// See student/kernels/native.py.
EXPORT int interface_version() { return 8; }
