// The layers of a head. Included by kernels.cpp, once per level.
//
// Most of the time of an answer goes into one layer of some hundred outputs, which is multiplied by many inputs at once:
// a tile of ROWS inputs and COLUMNS vectors of outputs stays in registers while the inputs' numbers pass by. What differs
// between float32, bfloat16 and int8 is the one instruction that multiplies a unit of 4 bytes.

#if defined(__AVX512F__)
constexpr int LANES = 16, ROWS = 8, COLUMNS = 3, WIDE_COLUMNS = 8;
#elif defined(__AVX2__)
constexpr int LANES = 8, ROWS = 6, COLUMNS = 2, WIDE_COLUMNS = 8;
#else
constexpr int LANES = 4, ROWS = 4, COLUMNS = 2, WIDE_COLUMNS = 8;
#endif

constexpr int SPAN_WEIGHTS = 4096;  // 16 KB: half of the smallest nearest cache, beside which inputs lie

typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t Numbers __attribute__((vector_size(4 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

// Which arithmetic there is for layers of bfloat16 and int8; without it their weights become floats.
#if defined(__AVX512BF16__)
constexpr bool HAS_PAIRS = true, HAS_BYTES = true;
constexpr int OFFSET = 128;  // added to int8 inputs, which the instruction takes without a sign
#else
constexpr bool HAS_PAIRS = false;
constexpr int OFFSET = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool HAS_BYTES = true;
#else
constexpr bool HAS_BYTES = false;
#endif
#endif

INLINE float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

INLINE uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// To the nearest bfloat16, of two equally near ones to the even one.
INLINE uint16_t brain(float value) {
  const uint32_t bits = as_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct PairUnit;
struct ByteUnit;

struct FloatUnit {
  using Sum = Lanes;
  static INLINE void add(Sum& sum, const uint32_t* weights, uint32_t unit) {
    Lanes numbers;
    std::memcpy(&numbers, weights, sizeof numbers);
    sum += numbers * as_float(unit);
  }
};

#if defined(__AVX512BF16__)
struct PairUnit {
  using Sum = Lanes;
  static INLINE void add(Sum& sum, const uint32_t* weights, uint32_t unit) {
    const __m512i pairs = _mm512_loadu_si512(weights), inputs = _mm512_set1_epi32(static_cast<int>(unit));
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(inputs), reinterpret_cast<__m512bh>(pairs));
  }
};

struct ByteUnit {
  using Sum = Numbers;
  static INLINE void add(Sum& sum, const uint32_t* weights, uint32_t unit) {
    const __m512i bytes = _mm512_loadu_si512(weights), inputs = _mm512_set1_epi32(static_cast<int>(unit));
    sum = reinterpret_cast<Numbers>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum), inputs, bytes));
  }
};
#elif defined(__AVX2__) && !defined(__AVX512F__)
struct ByteUnit {
  using Sum = Numbers;
  static INLINE void add(Sum& sum, const uint32_t* weights, uint32_t unit) {
    const __m256i inputs = _mm256_set1_epi32(static_cast<int>(unit));
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
    // The instruction takes one factor without a sign, so the inputs' signs move to the weights. Two products of at
    // most 127 * 128 fit its 16 bits, which an offset of the inputs would not leave room for.
    const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(inputs), _mm256_sign_epi8(bytes, inputs));
    sum += reinterpret_cast<Numbers>(_mm256_madd_epi16(products, _mm256_set1_epi16(1)));
  }
};
#endif

PackedLayer plan(const Layer& layer) {
  PackedLayer packed{};
  int64_t per_unit = 1;
  if (HAS_PAIRS && layer.number == BFLOAT16) packed.arithmetic = PackedLayer::PAIRS, per_unit = 2;
  if (HAS_BYTES && layer.number == INT8) packed.arithmetic = PackedLayer::BYTES, per_unit = 4;
  packed.lanes = LANES;
  packed.out = (layer.out + LANES - 1) / LANES * LANES;
  packed.groups = layer.groups;
  packed.num_groups = layer.num_groups;
  for (int64_t n = 0; n < layer.num_groups; n++) packed.units += (layer.groups[n].size + per_unit - 1) / per_unit;
  return packed;
}

INLINE float weight_of(const Layer& layer, int64_t out, int64_t in, int64_t group) {
  const int64_t place = out * layer.in + in;
  if (layer.number == FLOAT32) return static_cast<const float*>(layer.data)[place];
  if (layer.number == BFLOAT16) return as_float(uint32_t{static_cast<const uint16_t*>(layer.data)[place]} << 16);
  return layer.scales[group * layer.out + out] * static_cast<float>(static_cast<const int8_t*>(layer.data)[place]);
}

void pack(const Layer& layer, PackedLayer& packed) {
  const int64_t per_unit = packed.arithmetic == PackedLayer::BYTES ? 4 : packed.arithmetic == PackedLayer::PAIRS ? 2 : 1;
  int64_t unit = 0;
  for (int64_t n = 0; n < layer.num_groups; n++) {
    const Group group = layer.groups[n];
    const int64_t end = group.begin + group.size;
    for (int64_t in = group.begin; in < end; in += per_unit, unit++) {
      for (int64_t out = 0; out < packed.out; out++) {
        uint32_t bits = 0;
        for (int64_t k = 0; k < per_unit && out < layer.out && in + k < end; k++) {
          const int64_t place = out * layer.in + in + k;
          if (packed.arithmetic == PackedLayer::BYTES) {
            const int8_t number = static_cast<const int8_t*>(layer.data)[place];
            bits |= uint32_t{static_cast<uint8_t>(number)} << 8 * k;
            packed.corrections[n * packed.out + out] += OFFSET * number;
          } else if (packed.arithmetic == PackedLayer::PAIRS) {
            bits |= uint32_t{static_cast<const uint16_t*>(layer.data)[place]} << 16 * k;
          } else {
            bits = as_bits(weight_of(layer, out, in, group.number));
          }
        }
        packed.weights[(out / LANES * packed.units + unit) * LANES + out % LANES] = bits;
      }
    }
    for (int64_t out = 0; packed.arithmetic == PackedLayer::BYTES && out < layer.out; out++)
      packed.scales[n * packed.out + out] = layer.scales[group.number * layer.out + out];
    packed.unit_ends[n] = unit;
  }
}

INLINE Lanes lanes_of(const float* numbers, int64_t count) {
  Lanes lanes = {};
  if (count >= LANES) std::memcpy(&lanes, numbers, sizeof lanes);
  else std::memcpy(&lanes, numbers, sizeof(float) * static_cast<size_t>(count));
  return lanes;
}

INLINE void store_lanes(const Lanes& lanes, float* numbers, int64_t count) {
  if (count >= LANES) std::memcpy(numbers, &lanes, sizeof lanes);
  else std::memcpy(numbers, &lanes, sizeof(float) * static_cast<size_t>(count));
}

// Numbers of a group, rounded to 8 bits; returns their scale.
INLINE float to_bytes(const float* numbers, int64_t count, uint8_t* bytes) {
  Lanes sizes = {};
  for (int64_t i = 0; i < count; i += LANES) {
    const Lanes lanes = lanes_of(numbers + i, count - i), size = lanes < 0 ? -lanes : lanes;
    sizes = size > sizes ? size : sizes;
  }
  float largest = 0;
  for (int k = 0; k < LANES; k++) largest = sizes[k] > largest ? sizes[k] : largest;
  if (!(largest > 0 && largest < std::numeric_limits<float>::infinity())) largest = 1;
  const float steps = 127 / largest;
  const Lanes most = Lanes{} + 127, half = Lanes{} + 0.5f;
  for (int64_t i = 0; i < count; i += LANES) {
    Lanes step = lanes_of(numbers + i, count - i) * steps;
    step = step > -most ? step : -most;  // what is no number becomes -127
    step = step < most ? step : most;
    step += step < 0 ? -half : half;
    const auto rounded = __builtin_convertvector(__builtin_convertvector(step, Numbers) + OFFSET, Bytes);
    std::memcpy(bytes + i, &rounded, static_cast<size_t>(count - i < LANES ? count - i : LANES));
  }
  return largest / 127;
}

void prepare(const PackedLayer& packed, const float* inputs, uint32_t* units, float* scales) {
  for (int64_t n = 0, unit = 0; n < packed.num_groups; unit = packed.unit_ends[n++]) {
    const float* group = inputs + packed.groups[n].begin - packed.groups[0].begin;
    const int64_t count = packed.groups[n].size;
    if (packed.arithmetic == PackedLayer::FLOATS) {
      std::memcpy(units + unit, group, sizeof(float) * static_cast<size_t>(count));
    } else if (packed.arithmetic == PackedLayer::BYTES) {
      auto* bytes = reinterpret_cast<uint8_t*>(units + unit);
      scales[n] = to_bytes(group, count, bytes);
      std::memset(bytes + count, OFFSET, static_cast<size_t>(4 * (packed.unit_ends[n] - unit) - count));
    } else {
      auto* numbers = reinterpret_cast<uint16_t*>(units + unit);
      for (int64_t i = 0; i < count; i++) numbers[i] = brain(group[i]);
      if (count % 2) numbers[count] = 0;
    }
  }
}

// Units that are summed before `out` is written: of one group, and few enough that their weights, which all rows of
// inputs are multiplied by one after another, stay in the nearest cache.
struct Span {
  int64_t group, begin, end;
};

// HEIGHT rows of inputs and WIDTH vectors of outputs.
template <class Unit, int HEIGHT, int WIDTH>
INLINE void multiply_tile(const uint32_t* weights, int64_t units, const uint32_t* inputs, Span span,
                          typename Unit::Sum (&sum)[HEIGHT][WIDTH]) {
#pragma GCC unroll 1
  for (int64_t unit = span.begin; unit < span.end; unit++)
    UNROLL for (int i = 0; i < HEIGHT; i++)  // a number of the inputs is loaded once, and meets weights in registers
      UNROLL for (int j = 0; j < WIDTH; j++)
        Unit::add(sum[i][j], weights + (j * units + unit) * LANES, inputs[i * units + unit]);
}

INLINE Lanes as_numbers(const PackedLayer&, const Lanes& sum, int64_t, int64_t, const float*) { return sum; }

// What sums of bytes are worth: without the inputs' offset, times both scales.
INLINE Lanes as_numbers(const PackedLayer& packed, const Numbers& sum, int64_t group, int64_t column,
                        const float* scales) {
  const int64_t first = group * packed.out + column * LANES;
  Lanes weight_scales;
  Numbers corrections;
  std::memcpy(&weight_scales, packed.scales + first, sizeof weight_scales);
  std::memcpy(&corrections, packed.corrections + first, sizeof corrections);
  return __builtin_convertvector(sum - corrections, Lanes) * (weight_scales * scales[group]);
}

template <class Unit, int HEIGHT, int WIDTH>
void multiply_columns(const PackedLayer& packed, const uint32_t* inputs, const float* scales, int64_t column,
                      Span span, float* out) {
  typename Unit::Sum sum[HEIGHT][WIDTH] = {};
  multiply_tile<Unit>(packed.weights + column * packed.units * LANES, packed.units, inputs, span, sum);
  UNROLL for (int i = 0; i < HEIGHT; i++)
    UNROLL for (int j = 0; j < WIDTH; j++) {
      float* place = out + i * packed.out + (column + j) * LANES;
      Lanes total = {};
      if (span.begin > 0) std::memcpy(&total, place, sizeof total);
      total += as_numbers(packed, sum[i][j], span.group, column + j, scales + i * packed.num_groups);
      std::memcpy(place, &total, sizeof total);
    }
}

template <class Unit, int WIDTH>
void multiply_spans(const PackedLayer& packed, const uint32_t* inputs, const float* scales, int64_t count,
                    int64_t column, float* out) {
  constexpr bool HAS_SCALES = std::is_same_v<typename Unit::Sum, Numbers>;
  // A group has one scale and correction, and one row alone reads its weights once in any order: no parts of these.
  const int64_t longest = HAS_SCALES || count == 1 ? packed.units : SPAN_WEIGHTS / (LANES * COLUMNS);
  for (int64_t group = 0, begin = 0; begin < packed.units;) {
    const int64_t group_end = HAS_SCALES ? packed.unit_ends[group] : packed.units;
    const int64_t end = begin + longest < group_end ? begin + longest : group_end;
    const Span span{group, begin, end};
    if (count == 1)
      multiply_columns<Unit, 1, WIDTH>(packed, inputs, scales, column, span, out);
    else
      // The last tile has rows that nobody reads, which takes less time than tiles with fewer rows.
      for (int64_t row = 0; row < count; row += ROWS)
        multiply_columns<Unit, ROWS, WIDTH>(packed, inputs + row * packed.units, scales + row * packed.num_groups,
                                            column, span, out + row * packed.out);
    begin = end;
    group += end == group_end;
  }
}

template <class Unit>
void multiply_as(const PackedLayer& packed, const uint32_t* inputs, const float* scales, int64_t count, float* out) {
  const int64_t columns = packed.out / LANES;
  int64_t column = 0;
  if (count == 1)  // one row alone waits for each sum: more of them at a time
    for (; column + WIDE_COLUMNS <= columns; column += WIDE_COLUMNS)
      multiply_spans<Unit, WIDE_COLUMNS>(packed, inputs, scales, 1, column, out);
  for (; column + COLUMNS <= columns; column += COLUMNS)
    multiply_spans<Unit, COLUMNS>(packed, inputs, scales, count, column, out);
  for (; column < columns; column++) multiply_spans<Unit, 1>(packed, inputs, scales, count, column, out);
}

void multiply(const PackedLayer& packed, const uint32_t* units, const float* scales, int64_t count, float* out) {
  if (!packed.units) std::memset(out, 0, sizeof(float) * static_cast<size_t>(count * packed.out));
  if constexpr (HAS_PAIRS)
    if (packed.arithmetic == PackedLayer::PAIRS) return multiply_as<PairUnit>(packed, units, scales, count, out);
  if constexpr (HAS_BYTES)
    if (packed.arithmetic == PackedLayer::BYTES) return multiply_as<ByteUnit>(packed, units, scales, count, out);
  multiply_as<FloatUnit>(packed, units, scales, count, out);
}

INLINE float total(const Lanes& lanes) {
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += lanes[i];
  return sum;
}

// The sum of `value(i)` over all numbers; Lanes at a time, in several sums, because an addition waits for the one before.
template <class Value>
INLINE float sum_of(const float* numbers, int64_t count, Value value) {
  constexpr int SUMS = 4;
  Lanes sums[SUMS] = {};
  const auto add = [&](Lanes& sum, int64_t i) __attribute__((always_inline)) {
    Lanes lanes;
    std::memcpy(&lanes, numbers + i, sizeof lanes);
    sum += value(lanes, i);
  };
  float rest = 0;
  int64_t i = 0;
  for (; i + SUMS * LANES <= count; i += SUMS * LANES)
    UNROLL for (int k = 0; k < SUMS; k++) add(sums[k], i + k * LANES);
  for (; i + LANES <= count; i += LANES) add(sums[0], i);
  for (; i < count; i++) {
    Lanes lanes = {};
    lanes[0] = numbers[i];
    rest += value(lanes, -i - 1)[0];
  }
  return total((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

void activate(float* numbers, int64_t count, const float* bias, bool normalise) {
  constexpr float EPSILON = 1e-5f;
  if (bias)
    for (int64_t i = 0; i < count; i++) {
      const float value = numbers[i] + bias[i];
      numbers[i] = value < 0 ? 0 : value;
    }
  if (!normalise) return;
  const auto size = static_cast<float>(count);
  const float mean = sum_of(numbers, count, [](const Lanes& lanes, int64_t) __attribute__((always_inline)) { return lanes; }) / size;
  for (int64_t i = 0; i < count; i++) numbers[i] -= mean;
  const float squares = sum_of(numbers, count, [](const Lanes& lanes, int64_t) __attribute__((always_inline)) { return lanes * lanes; });
  const float scale = 1 / std::sqrt(squares / size + EPSILON);
  for (int64_t i = 0; i < count; i++) numbers[i] *= scale;
}

INLINE float product_of(const float* numbers, const float* others, int64_t count) {
  return sum_of(numbers, count, [others](const Lanes& lanes, int64_t i) __attribute__((always_inline)) {
    Lanes other = {};
    if (i < 0) other[0] = others[-i - 1];
    else std::memcpy(&other, others + i, sizeof other);
    return lanes * other;
  });
}

void linear(const float* numbers, int64_t count, const float* weights, const float* bias, int64_t out_count,
            float* out) {
  for (int64_t k = 0; k < out_count; k++) out[k] = bias[k] + product_of(numbers, weights + k * count, count);
}
