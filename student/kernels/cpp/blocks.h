// Four by four numbers of a matrix, and a vector register's share of them, in the instructions of this build.
//
// A state (a running product) is kept as contiguous 4 x 4 blocks, so that every lane of a register has work although 20
// and 28 are no multiples of 8 or 16: a register holds LANE_ROWS rows of a block, `spread` repeats one number of each of
// these rows along its row, `repeat` puts the same 4 numbers of the right operand into each row.
#pragma once
#include <cstring>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

typedef float Quad __attribute__((vector_size(16)));

INLINE Quad load_quad(const float* from) {
  Quad quad;
  std::memcpy(&quad, from, sizeof quad);
  return quad;
}

INLINE void store_quad(float* to, Quad quad) { std::memcpy(to, &quad, sizeof quad); }

// TALL: vectors above one another in a tile of results; WIDE: the most blocks beside one another. Their product, the
// vectors of the left operand and one of the right have to fit into the registers.
#if defined(__AVX512F__)

using Vector = __m512;
constexpr int LANE_ROWS = 4, TALL = 3, WIDE = 7;

INLINE Vector load_vector(const float* from) { return _mm512_load_ps(from); }
INLINE void store_vector(float* to, Vector vector) { _mm512_store_ps(to, vector); }
INLINE Vector repeat(const float* from) { return _mm512_broadcast_f32x4(_mm_loadu_ps(from)); }
template <int K>
INLINE Vector spread(Vector vector) {
  return _mm512_permute_ps(vector, K * 0x55);
}

#elif defined(__AVX2__)

using Vector = __m256;
constexpr int LANE_ROWS = 2, TALL = 2, WIDE = 5;

INLINE Vector load_vector(const float* from) { return _mm256_load_ps(from); }
INLINE void store_vector(float* to, Vector vector) { _mm256_store_ps(to, vector); }
INLINE Vector repeat(const float* from) { return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(from)); }
template <int K>
INLINE Vector spread(Vector vector) {
  return _mm256_permute_ps(vector, K * 0x55);
}

#else

using Vector = Quad;
constexpr int LANE_ROWS = 1, TALL = 2, WIDE = 5;

INLINE Vector load_vector(const float* from) { return load_quad(from); }
INLINE void store_vector(float* to, Vector vector) { store_quad(to, vector); }
INLINE Vector repeat(const float* from) { return load_quad(from); }
template <int K>
INLINE Vector spread(Vector vector) {
  return Vector{vector[K], vector[K], vector[K], vector[K]};
}

#endif

// A whole block in registers: 16 contiguous numbers in a state, rows that lie `stride` numbers apart elsewhere.
#if defined(__AVX512F__)

struct Block {
  __m512 rows;
};

INLINE Block load_block(const float* from) { return {_mm512_load_ps(from)}; }
INLINE void store_block(float* to, Block block) { _mm512_store_ps(to, block.rows); }

INLINE Block load_rows(const float* from, int stride) {
  __m512 rows = _mm512_castps128_ps512(_mm_loadu_ps(from));
  rows = _mm512_mask_broadcast_f32x4(rows, 0x00f0, _mm_loadu_ps(from + stride));
  rows = _mm512_mask_broadcast_f32x4(rows, 0x0f00, _mm_loadu_ps(from + 2 * stride));
  rows = _mm512_mask_broadcast_f32x4(rows, 0xf000, _mm_loadu_ps(from + 3 * stride));
  return {rows};
}

INLINE void store_rows(float* to, int stride, Block block) {
  _mm_storeu_ps(to, _mm512_castps512_ps128(block.rows));
  _mm_storeu_ps(to + stride, _mm512_extractf32x4_ps(block.rows, 1));
  _mm_storeu_ps(to + 2 * stride, _mm512_extractf32x4_ps(block.rows, 2));
  _mm_storeu_ps(to + 3 * stride, _mm512_extractf32x4_ps(block.rows, 3));
}

INLINE Block transposed(Block block) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_permutexvar_ps(order, block.rows)};
}

INLINE Block operator+(Block a, Block b) { return {a.rows + b.rows}; }

#else

struct Block {
  Quad a, b, c, d;
};

INLINE Block load_rows(const float* from, int stride) {
  return {load_quad(from), load_quad(from + stride), load_quad(from + 2 * stride), load_quad(from + 3 * stride)};
}

INLINE void store_rows(float* to, int stride, Block block) {
  store_quad(to, block.a);
  store_quad(to + stride, block.b);
  store_quad(to + 2 * stride, block.c);
  store_quad(to + 3 * stride, block.d);
}

INLINE Block transposed(Block block) {
  const auto [a, b, c, d] = block;
  return {Quad{a[0], b[0], c[0], d[0]}, Quad{a[1], b[1], c[1], d[1]}, Quad{a[2], b[2], c[2], d[2]},
          Quad{a[3], b[3], c[3], d[3]}};
}

INLINE Block load_block(const float* from) { return load_rows(from, 4); }
INLINE void store_block(float* to, Block block) { store_rows(to, 4, block); }

INLINE Block operator+(Block x, Block y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }

#endif
