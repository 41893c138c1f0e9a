// What tables are made of. Half and Brain tables hold what is to be added to the neutral row, float tables the rows.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "blocks.h"

struct Half {
  uint16_t bits;  // IEEE binary16
};

struct Brain {
  uint16_t bits;  // bfloat16
};

template <class Number>
constexpr bool IS_RESIDUAL = !std::is_same_v<Number, float>;

// Sixteen numbers at once; the compiler splits them where registers are shorter.
constexpr int64_t SIXTEEN = 16;
typedef float Floats __attribute__((vector_size(4 * SIXTEEN)));
typedef uint32_t Words __attribute__((vector_size(4 * SIXTEEN)));
typedef uint16_t Shorts __attribute__((vector_size(2 * SIXTEEN)));

template <class Vector, class Number>
INLINE void load(Vector& vector, const Number* from) {
  static_assert(sizeof vector == SIXTEEN * sizeof(Number));
  std::memcpy(&vector, from, sizeof vector);
}

INLINE void load_floats(Floats& floats, const float* from) { load(floats, from); }

INLINE void load_floats(Floats& floats, const Brain* from) {
  Shorts bits;
  load(bits, from);
  floats = reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
}

// The exponents differ by 112, which a multiplication puts right for numbers below the normal ones too.
INLINE void load_floats(Floats& floats, const Half* from) {
  Shorts bits;
  load(bits, from);
  const Words words = __builtin_convertvector(bits, Words), size = words & 0x7fff;
  const Words finite = reinterpret_cast<Words>(reinterpret_cast<Floats>(size << 13) * 0x1p112f);
  const Words infinite = 0x7f800000 | size << 13;
  floats = reinterpret_cast<Floats>((words & 0x8000) << 16 | (size < 0x7c00 ? finite : infinite));
}

// Calls `work` with sixteen numbers at a time, zeros behind the last, their place and how many they are.
template <class Number, class Work>
INLINE void in_sixteens(const Number* numbers, int64_t count, Work work) {
  Floats floats;
  int64_t i = 0;
  for (; i + SIXTEEN <= count; i += SIXTEEN) {
    load_floats(floats, numbers + i);
    work(floats, i, SIXTEEN);
  }
  if (i == count) return;
  Number rest[SIXTEEN] = {};
  std::memcpy(rest, numbers + i, sizeof(Number) * (count - i));
  load_floats(floats, rest);
  work(floats, i, count - i);
}

// The numbers as floats: where they are, or in `copy`, which has room for them.
INLINE const float* as_floats(const float* numbers, int64_t, float*) { return numbers; }

template <class Number>
INLINE const float* as_floats(const Number* numbers, int64_t count, float* copy) {
  in_sixteens(numbers, count, [=](const Floats& floats, int64_t i, int64_t count) __attribute__((always_inline)) { std::memcpy(copy + i, &floats, sizeof(float) * count); });
  return copy;
}

// sum += row. Fetches another row meanwhile.
template <class Number>
INLINE void add_row(float* sum, const Number* row, int64_t width, const Number* ahead) {
  in_sixteens(row, width, [=](const Floats& floats, int64_t i, int64_t count) __attribute__((always_inline)) {
    __builtin_prefetch(ahead + i);
    Floats total = {};
    std::memcpy(&total, sum + i, sizeof(float) * count);
    total += floats;
    std::memcpy(sum + i, &total, sizeof(float) * count);
  });
}

// sum += row and max = max(max, row). Fetches another row meanwhile.
template <class Number>
INLINE void add_row_and_max(float* sum, float* max, const Number* row, int64_t width, const Number* ahead) {
  in_sixteens(row, width, [=](const Floats& floats, int64_t i, int64_t count) __attribute__((always_inline)) {
    __builtin_prefetch(ahead + i);
    Floats total = {}, largest = {};
    std::memcpy(&total, sum + i, sizeof(float) * count);
    std::memcpy(&largest, max + i, sizeof(float) * count);
    total += floats;
    largest = floats > largest ? floats : largest;
    std::memcpy(sum + i, &total, sizeof(float) * count);
    std::memcpy(max + i, &largest, sizeof(float) * count);
  });
}

// A table, of which there may be none. Its rows are `stride` numbers apart.
template <class Number>
struct Table {
  const Number* start;
  int64_t width, stride;
  Table(const void* data, int64_t width, int64_t stride)
      : start(static_cast<const Number*>(data)), width(width), stride(stride) {}
  explicit operator bool() const { return start; }
  INLINE const Number* row(int64_t id) const { return start + id * stride; }
};
