// Sums and maxima of rows. Included by kernels.cpp, once per level.
//
// Some columns of the results stay in registers while all rows pass by. Rows of any type become floats on the way.

typedef int8_t ByteLanes __attribute__((vector_size(LANES)));
typedef uint16_t ShortLanes __attribute__((vector_size(2 * LANES)));
typedef uint32_t WordLanes __attribute__((vector_size(4 * LANES)));

template <class Vector, class Number>
INLINE Vector part_of(const Number* numbers, int64_t there) {
  static_assert(sizeof(Vector) == LANES * sizeof(Number));
  Vector part = {};
  if (there >= LANES) std::memcpy(&part, numbers, sizeof part);
  else std::memcpy(&part, numbers, sizeof(Number) * static_cast<size_t>(there));
  return part;
}

// By instructions, because GCC converts vectors of bytes number by number on x86-64.
INLINE Lanes lanes_of(const int8_t* numbers, int64_t there) {
  const auto bytes = part_of<ByteLanes>(numbers, there);
#if defined(__AVX512F__)
  return reinterpret_cast<Lanes>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(reinterpret_cast<__m128i>(bytes))));
#elif defined(__AVX2__)
  int64_t bits;
  std::memcpy(&bits, &bytes, sizeof bits);
  return reinterpret_cast<Lanes>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bits))));
#elif defined(__SSE2__)
  int32_t bits;
  std::memcpy(&bits, &bytes, sizeof bits);
  __m128i words = _mm_cvtsi32_si128(bits);  // each byte becomes the highest one of a word, with its sign
  words = _mm_unpacklo_epi8(words, words);
  return reinterpret_cast<Lanes>(_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(words, words), 24)));
#else
  return __builtin_convertvector(bytes, Lanes);
#endif
}

INLINE Lanes lanes_of(const Brain* numbers, int64_t there) {
  return reinterpret_cast<Lanes>(__builtin_convertvector(part_of<ShortLanes>(numbers, there), WordLanes) << 16);
}

INLINE Lanes lanes_of(const Half* numbers, int64_t there) {
  const auto bits = part_of<ShortLanes>(numbers, there);
#if defined(__AVX512F__)
  return reinterpret_cast<Lanes>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(bits)));
#elif defined(__F16C__)
  return reinterpret_cast<Lanes>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(bits)));
#else
  // The exponents differ by 112. Halves that are not finite, which no file of ours has, become large numbers. A shift copies
  // the sign into three bits above the exponent, which are then cleared.
  const auto words = reinterpret_cast<Numbers>(__builtin_convertvector(bits, WordLanes) << 16) >> 3;
  return reinterpret_cast<Lanes>(words & static_cast<int32_t>(0x8fffe000)) * 0x1p112f;
#endif
}

// Rows of one type, and of int8 what each is multiplied by.
template <class Number>
struct RowList {
  const Number* const* rows;
  const float* scales;
  int64_t count, width;
};

constexpr int64_t AHEAD = 8;  // rows between the one that is read and the one that is fetched

// WIDTH vectors of the results from column `i` on.
template <bool HAS_SUM, bool HAS_MAX, int WIDTH, class Number>
INLINE void pool_columns(const RowList<Number>& list, int64_t i, float* sum_out, float* max_out) {
  const auto there = [&](int k) __attribute__((always_inline)) { return WIDTH > 1 ? LANES : list.width - i - k * LANES; };
  Lanes sum[WIDTH], max[WIDTH];
  UNROLL for (int k = 0; k < WIDTH; k++) {
    if (HAS_SUM) sum[k] = lanes_of(sum_out + i + k * LANES, there(k));
    if (HAS_MAX) max[k] = lanes_of(max_out + i + k * LANES, there(k));
  }
  for (int64_t t = 0; t < list.count; t++) {
    const Number* row = list.rows[t] + i;
    if (t + AHEAD < list.count) fetch(list.rows[t + AHEAD] + i, WIDTH * LANES * sizeof(Number));
    UNROLL for (int k = 0; k < WIDTH; k++) {
      Lanes numbers = lanes_of(row + k * LANES, there(k));
      if constexpr (std::is_same_v<Number, int8_t>) numbers *= list.scales[t];
      if (HAS_SUM) sum[k] += numbers;
      if (HAS_MAX) max[k] = numbers > max[k] ? numbers : max[k];
    }
  }
  UNROLL for (int k = 0; k < WIDTH; k++) {
    if (HAS_SUM) store_lanes(sum[k], sum_out + i + k * LANES, there(k));
    if (HAS_MAX) store_lanes(max[k], max_out + i + k * LANES, there(k));
  }
}

template <bool HAS_SUM, bool HAS_MAX, class Number>
INLINE void pool_as(const RowList<Number>& list, float* sum, float* max) {
  constexpr int WIDTH = HAS_SUM && HAS_MAX ? 4 : 8;
  int64_t i = 0;
  for (; i + WIDTH * LANES <= list.width; i += WIDTH * LANES) pool_columns<HAS_SUM, HAS_MAX, WIDTH>(list, i, sum, max);
  for (; i < list.width; i += LANES) pool_columns<HAS_SUM, HAS_MAX, 1>(list, i, sum, max);
}

// sum += all rows, and max = max(max, all rows). Either may be null.
template <class Number>
INLINE void pool(const RowList<Number>& list, float* sum, float* max) {
  if (sum && max) return pool_as<true, true>(list, sum, max);
  if (sum) return pool_as<true, false>(list, sum, max);
  if (max) pool_as<false, true>(list, sum, max);
}
