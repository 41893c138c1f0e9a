// From the rows of a sequence's tokens to its representation: sum and maxima of vectors and both products, in one pass;
// and to those of all its beginnings and ends.
// Included by kernels.cpp, once per level.

constexpr int64_t CACHE_LINE = 64;  // bytes

// sum += scale * row
INLINE void add_scaled(float* sum, const int8_t* row, float scale, int64_t width) {
  for (int64_t i = 0; i < width; i++) sum[i] += scale * static_cast<float>(row[i]);
}

INLINE void fetch(const int8_t* numbers, int64_t width) {
  for (int64_t i = 0; i < width; i += CACHE_LINE) __builtin_prefetch(numbers + i);
}

// Where the vector of a row is.
template <class Number>
INLINE const Number* vector_of(const RowTable& table, int64_t row) {
  if (row < table.whole) return static_cast<const Number*>(table.data) + row * table.width;
  return static_cast<const Number*>(table.vectors) + (row - table.whole) * table.vector_size;
}

// Where a matrix of a row is, which begins at that number. The row has matrices.
template <class Number>
INLINE const Number* matrix_of(const RowTable& table, int64_t row, int64_t begin) {
  return static_cast<const Number*>(table.data) + row * table.width + begin;
}

// Multiplies with a matrix of a row, and fetches that of the next one.
template <class Number>
struct MatrixReader {
  const RowTable& table;
  int64_t begin;

  template <class Size>
  INLINE void append(Chain<Size>& chain, int64_t row, int64_t next) const {
    if (row >= table.whole) return;  // the identity
    chain.append(matrix_of<Number>(table, row, begin), matrix_of<Number>(table, next < table.whole ? next : row, begin));
  }
};

template <>
struct MatrixReader<int8_t> {
  const RowTable& table;
  int64_t begin, part;
  float* copy;

  template <class Size>
  INLINE void append(Chain<Size>& chain, int64_t row, int64_t next) const {
    if (row >= table.whole) return;
    const int64_t size = table.side * table.side;
    if (next < table.whole) fetch(matrix_of<int8_t>(table, next, begin), size);
    const int8_t* numbers = matrix_of<int8_t>(table, row, begin);
    const float scale = table.scales[row * table.parts() + part];
    for (int64_t i = 0; i < size; i++) copy[i] = scale * static_cast<float>(numbers[i]);
    for (int64_t i = 0; i < size; i += table.side + 1) copy[i] += 1;
    chain.append(copy, copy);  // the next one is not there yet
  }
};

template <class Number>
INLINE MatrixReader<Number> matrix_reader(const RowTable& table, bool is_back, float* scratch) {
  const int64_t size = table.side * table.side, begin = table.vector_size + is_back * size;
  if constexpr (std::is_same_v<Number, int8_t>)
    return {table, begin, (table.vector_size > 0) + is_back, scratch + is_back * size};
  else
    return {table, begin};
}

// sum += vector, and max = max(max, vector) where there are maxima. Fetches the next vector.
template <class Number>
INLINE void add_vector(const RowTable& table, int64_t row, int64_t next, float* sum, float* max) {
  const Number *numbers = vector_of<Number>(table, row), *ahead = vector_of<Number>(table, next);
  if (table.has_maxima)
    add_row_and_max(sum, max, numbers, table.vector_size, ahead);
  else
    add_row(sum, numbers, table.vector_size, ahead);
}

template <>
INLINE void add_vector<int8_t>(const RowTable& table, int64_t row, int64_t next, float* sum, float* max) {
  fetch(vector_of<int8_t>(table, next), table.vector_size);
  const int8_t* numbers = vector_of<int8_t>(table, row);
  const bool is_whole = row < table.whole;
  const float scale = is_whole ? table.scales[row * table.parts()] : table.vector_scales[row - table.whole];
  if (!table.skips_sums) add_scaled(sum, numbers, scale, table.vector_size);
  if (!table.has_maxima) return;
  for (int64_t i = 0; i < table.vector_size; i++) {
    const float number = scale * static_cast<float>(numbers[i]);
    max[i] = number > max[i] ? number : max[i];
  }
}

template <class Number, class Size>
void encode_as(const RowTable& table, Size size, const int32_t* rows, int64_t count, float* features, float* scratch) {
  const auto forward = matrix_reader<Number>(table, false, scratch), backward = matrix_reader<Number>(table, true, scratch);
  float* const max = features + table.vector_size;
  for (int64_t i = 0; i < table.vector_size; i++) features[i] = 0;
  if (table.has_maxima)
    for (int64_t i = 0; i < table.vector_size; i++) max[i] = count ? -std::numeric_limits<float>::infinity() : 0;
  const bool reads_vectors = table.vector_size && (table.has_maxima || !table.skips_sums);
  Chain<Size> there(size), back(size);
  there.clear();
  back.clear();
  for (int64_t t = 0; t < count; t++) {
    const int64_t row = rows[t], next = rows[t + 1 < count ? t + 1 : t];
    const int64_t row_back = rows[count - 1 - t], next_back = rows[t + 1 < count ? count - 2 - t : 0];
    if (table.side) forward.append(there, row, next);
    if (table.has_backward) backward.append(back, row_back, next_back);
    if (reads_vectors) add_vector<Number>(table, row, next, features, max);
  }
  float* out = features + table.vector_size * (1 + table.has_maxima);
  if (table.side) there.write(out);
  if (table.has_backward) back.write(out + table.side * table.side);
}

// The features of tokens on the way through a sequence, or on the way back, in their part of each token's features.
template <class Number, class Size>
void scan_way(const RowTable& table, Size size, bool is_back, const int32_t* rows, int64_t count, float* features,
              float* scratch) {
  const auto matrices = matrix_reader<Number>(table, is_back, scratch);
  const auto place = [=](int64_t t) __attribute__((always_inline)) { return is_back ? count - 1 - t : t; };
  Chain<Size> product(size);
  product.clear();
  const float* before = nullptr;
  for (int64_t t = 0; t < count; t++) {
    const int64_t row = rows[place(t)], next = rows[place(t + 1 < count ? t + 1 : t)];
    float* const out = features + place(t) * table.token_features();
    for (int64_t i = 0; i < table.vector_size; i++) out[i] = before ? before[i] : 0;
    before = out;
    if (table.vector_size) add_vector<Number>(table, row, next, out, nullptr);
    if (!table.side) continue;
    matrices.append(product, row, next);
    product.write(out + table.vector_size);
  }
}

template <class Number, class Size>
void scan_as(const RowTable& table, Size size, const int32_t* rows, int64_t count, float* features, float* scratch) {
  scan_way<Number>(table, size, false, rows, count, features, scratch);
  if (!table.has_backward) return;
  const int64_t there = table.vector_size + table.side * table.side;
  scan_way<Number>(table, size, true, rows, count, features + there, scratch);
}

template <class Type>
struct Of {
  using type = Type;
};

// Calls work(Of<number>, size) for the numbers and the side of a table.
template <class Number, class Work>
void sized(const RowTable& table, Work work) {
  if (table.side == 20) return work(Of<Number>{}, Fixed<5>{});
  if (table.side == 28) return work(Of<Number>{}, Fixed<7>{});
  work(Of<Number>{}, Any{static_cast<int>(table.side)});
}

template <class Work>
void typed(const RowTable& table, Work work) {
  switch (table.number) {
    case FLOAT32: return sized<float>(table, work);
    case FLOAT16: return sized<Half>(table, work);
    case BFLOAT16: return sized<Brain>(table, work);
    default: return sized<int8_t>(table, work);
  }
}

void encode(const RowTable& table, const int32_t* rows, int64_t count, float* features, float* scratch) {
  typed(table, [&](auto number, auto size) {
    encode_as<typename decltype(number)::type>(table, size, rows, count, features, scratch);
  });
}

void scan(const RowTable& table, const int32_t* rows, int64_t count, float* features, float* scratch) {
  typed(table, [&](auto number, auto size) {
    scan_as<typename decltype(number)::type>(table, size, rows, count, features, scratch);
  });
}

void add_row_of(const void* row, Number number, float scale, int64_t width, float* sum) {
  const auto add = [=](auto* numbers) { add_row(sum, numbers, width, numbers); };
  switch (number) {
    case FLOAT32: return add(static_cast<const float*>(row));
    case FLOAT16: return add(static_cast<const Half*>(row));
    case BFLOAT16: return add(static_cast<const Brain*>(row));
    default: return add_scaled(sum, static_cast<const int8_t*>(row), scale, width);
  }
}
