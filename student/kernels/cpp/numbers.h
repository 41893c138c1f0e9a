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

INLINE float from_bits(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

INLINE float to_float(float number) { return number; }

INLINE float to_float(Brain number) { return from_bits(static_cast<uint32_t>(number.bits) << 16); }

// The exponents differ by 112, which a multiplication puts right for numbers below the normal ones too.
INLINE float to_float(Half number) {
  const uint32_t sign = (number.bits & 0x8000u) << 16, size = number.bits & 0x7fffu;
  const float finite = from_bits(size << 13) * 0x1p112f;
  const uint32_t infinite = 0x7f800000u | size << 13;
  uint32_t bits;
  std::memcpy(&bits, &finite, sizeof bits);
  return from_bits(sign | (size < 0x7c00u ? bits : infinite));
}

// A table, of which there may be none.
template <class Number>
struct Table {
  const Number* start;
  int64_t width;
  Table(const void* data, int64_t width) : start(static_cast<const Number*>(data)), width(width) {}
  explicit operator bool() const { return start; }
  INLINE const Number* row(int64_t id) const { return start + id * width; }
};

// sum += row. Fetches another row meanwhile.
template <class Number>
INLINE void add_row(float* __restrict sum, const Number* __restrict row, int64_t width, const Number* ahead) {
  constexpr int64_t LINE = 64 / sizeof(Number);
  int64_t i = 0;
  for (; i + LINE <= width; i += LINE) {
    __builtin_prefetch(ahead + i);
    for (int64_t k = i; k < i + LINE; k++) sum[k] += to_float(row[k]);
  }
  for (; i < width; i++) sum[i] += to_float(row[i]);
}
