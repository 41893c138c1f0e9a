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

// Which arithmetic there is for layers of bfloat16 and int8; without it their weights become floats. Sums of bytes and
// those of words are of the same whole numbers, so all levels that have either give the same sums.
#if defined(__AVX512BF16__)
constexpr bool HAS_PAIRS = true, HAS_BYTES = true, HAS_WORDS = false;
constexpr int OFFSET = 128;  // added to bytes of inputs, which the instruction takes without a sign
#else
constexpr bool HAS_PAIRS = false, HAS_BYTES = false;
constexpr int OFFSET = 0;
#if defined(__SSE2__)
constexpr bool HAS_WORDS = true;
#else
constexpr bool HAS_WORDS = false;
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
struct WordUnit;

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
#elif defined(__SSE2__)
// Sums of two products each, of words beside each other.
INLINE Numbers products_of_words(const uint32_t* weights, int inputs) {
#if defined(__AVX512F__)
  return reinterpret_cast<Numbers>(_mm512_madd_epi16(_mm512_loadu_si512(weights), _mm512_set1_epi32(inputs)));
#elif defined(__AVX2__)
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights));
  return reinterpret_cast<Numbers>(_mm256_madd_epi16(words, _mm256_set1_epi32(inputs)));
#else
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights));
  return reinterpret_cast<Numbers>(_mm_madd_epi16(words, _mm_set1_epi32(inputs)));
#endif
}

struct WordUnit {
  using Sum = Numbers;
  static INLINE void add(Sum& sum, const uint32_t* weights, uint32_t unit) {
    sum += products_of_words(weights, static_cast<int>(unit));
  }
};
#endif

PackedLayer plan(const Layer& layer) {
  PackedLayer packed{};
  if (HAS_PAIRS && layer.number == BFLOAT16) packed.arithmetic = PackedLayer::PAIRS;
  if (HAS_BYTES && layer.number == INT8) packed.arithmetic = PackedLayer::BYTES;
  if (HAS_WORDS && layer.number == INT8) packed.arithmetic = PackedLayer::WORDS;
  const int64_t per_unit = packed.per_unit();
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

// The bits of a weight in a unit, from the lowest ones on.
INLINE uint32_t bits_of(const Layer& layer, PackedLayer::Arithmetic arithmetic, int64_t out, int64_t in, int64_t group) {
  const int64_t place = out * layer.in + in;
  if (arithmetic == PackedLayer::FLOATS) return as_bits(weight_of(layer, out, in, group));
  if (arithmetic == PackedLayer::PAIRS) return static_cast<const uint16_t*>(layer.data)[place];
  const int8_t number = static_cast<const int8_t*>(layer.data)[place];
  return arithmetic == PackedLayer::BYTES ? static_cast<uint8_t>(number) : static_cast<uint16_t>(int16_t{number});
}

void pack(const Layer& layer, PackedLayer& packed) {
  const int64_t per_unit = packed.per_unit(), size = 32 / per_unit;
  int64_t unit = 0;
  for (int64_t n = 0; n < layer.num_groups; n++) {
    const Group group = layer.groups[n];
    const int64_t end = group.begin + group.size;
    for (int64_t in = group.begin; in < end; in += per_unit, unit++) {
      for (int64_t out = 0; out < packed.out; out++) {
        uint32_t bits = 0;
        for (int64_t k = 0; k < per_unit && out < layer.out && in + k < end; k++)
          bits |= bits_of(layer, packed.arithmetic, out, in + k, group.number) << size * k;
        packed.weights[(out / LANES * packed.units + unit) * LANES + out % LANES] = bits;
      }
    }
    for (int64_t out = 0; packed.is_rounded() && out < layer.out; out++) {
      packed.scales[n * packed.out + out] = layer.scales[group.number * layer.out + out];
      for (int64_t in = group.begin; in < end; in++)
        packed.corrections[n * packed.out + out] += OFFSET * static_cast<const int8_t*>(layer.data)[out * layer.in + in];
    }
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

// Calls work(i, there) for Lanes of numbers from place i on, of which `there` are there. The last ones are read twice
// rather than in part.
template <class Work>
INLINE void in_lanes(int64_t count, Work work) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) work(i, int64_t{LANES});
  if (i < count) count < LANES ? work(0, count) : work(count - LANES, int64_t{LANES});
}

// The size of the largest of the numbers.
INLINE float largest_of(const float* numbers, int64_t count) {
  Lanes sizes = {};
  in_lanes(count, [&](int64_t i, int64_t there) __attribute__((always_inline)) {
    const Lanes lanes = lanes_of(numbers + i, there), size = lanes < 0 ? -lanes : lanes;
    sizes = size > sizes ? size : sizes;
  });
  float largest = 0;
  for (int k = 0; k < LANES; k++) largest = sizes[k] > largest ? sizes[k] : largest;
  return largest;
}

// Numbers of a group, rounded to 8 bits and stored as these or as words; returns their scale.
template <class Whole>
INLINE float to_whole(const float* numbers, int64_t count, Whole* whole) {
  typedef Whole Wholes __attribute__((vector_size(sizeof(Whole) * LANES)));
  float largest = largest_of(numbers, count);
  if (!(largest > 0 && largest < std::numeric_limits<float>::infinity())) largest = 1;
  const float steps = 127 / largest;
  const Lanes most = Lanes{} + 127;
  in_lanes(count, [&](int64_t i, int64_t there) __attribute__((always_inline)) {
    Lanes step = lanes_of(numbers + i, there) * steps;
    step = step > -most ? step : -most;  // what is no number becomes -127
    step = step < most ? step : most;
    const Numbers sign = reinterpret_cast<Numbers>(step) & INT32_MIN;
    step += reinterpret_cast<Lanes>(reinterpret_cast<Numbers>(Lanes{} + 0.5f) | sign);
    const auto rounded = __builtin_convertvector(__builtin_convertvector(step, Numbers) + OFFSET, Wholes);
    std::memcpy(whole + i, &rounded, sizeof(Whole) * static_cast<size_t>(there));
  });
  return largest / 127;
}

// Fills the units of a group, of which there are `count` numbers; returns the scale of those that are rounded.
template <class Whole>
INLINE float fill_units(const float* numbers, int64_t count, uint32_t* units, int64_t num_units) {
  const auto whole = reinterpret_cast<Whole*>(units);
  const float scale = to_whole(numbers, count, whole);
  for (int64_t i = count; i < num_units * static_cast<int64_t>(sizeof *units / sizeof *whole); i++) whole[i] = OFFSET;
  return scale;
}

void prepare(const PackedLayer& packed, const float* inputs, uint32_t* units, float* scales) {
  for (int64_t n = 0, unit = 0; n < packed.num_groups; unit = packed.unit_ends[n++]) {
    const float* group = inputs + packed.groups[n].begin - packed.groups[0].begin;
    const int64_t count = packed.groups[n].size, num_units = packed.unit_ends[n] - unit;
    if (packed.arithmetic == PackedLayer::FLOATS) {
      std::memcpy(units + unit, group, sizeof(float) * static_cast<size_t>(count));
    } else if (packed.arithmetic == PackedLayer::BYTES) {
      scales[n] = fill_units<uint8_t>(group, count, units + unit, num_units);
    } else if (packed.arithmetic == PackedLayer::WORDS) {
      scales[n] = fill_units<int16_t>(group, count, units + unit, num_units);
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

// What sums of rounded numbers are worth: without the inputs' offset, times both scales.
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
  if constexpr (HAS_WORDS)
    if (packed.arithmetic == PackedLayer::WORDS) return multiply_as<WordUnit>(packed, units, scales, count, out);
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
