// From the rows of a sequence's tokens to its representation: sum and maxima of vectors, then both products in one pass;
// and to those of all its beginnings and ends.
// Included by kernels.cpp, once per level.

template <class Number>
INLINE const Number* vector_of(const RowTable& table, int64_t row) {
  return static_cast<const Number*>(table.vector_at(row));
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

// The vectors of some rows that follow each other.
template <class Number>
struct Piece {
  const Number* vectors[PIECE];
  float scales[PIECE];

  INLINE Piece(const RowTable& table, const int32_t* rows, int64_t count) {
    for (int64_t t = 0; t < count; t++) {
      vectors[t] = vector_of<Number>(table, rows[t]);
      if constexpr (std::is_same_v<Number, int8_t>)
        scales[t] = rows[t] < table.whole ? table.scales[rows[t] * table.parts()]
                                          : table.vector_scales[rows[t] - table.whole];
    }
  }
};

// Adds vectors to a sum, and takes the maxima of them and of what there is.
template <class Number>
INLINE void pool_vectors(const RowTable& table, const int32_t* rows, int64_t count, float* sum, float* max) {
  const auto bytes = table.vector_size * static_cast<int64_t>(sizeof(Number));
  for (int64_t begin = 0; begin < count; begin += PIECE) {
    const int64_t end = begin + PIECE < count ? begin + PIECE : count;
    for (int64_t t = end; t < end + PIECE && t < count; t++) fetch(vector_of<Number>(table, rows[t]), bytes);
    const Piece<Number> piece(table, rows + begin, end - begin);
    pool(RowList<Number>{piece.vectors, piece.scales, end - begin, table.vector_size}, sum, max);
  }
}

template <class Number, class Size>
void encode_as(const RowTable& table, Size size, const int32_t* rows, int64_t count, float* features, float* scratch) {
  const auto forward = matrix_reader<Number>(table, false, scratch), backward = matrix_reader<Number>(table, true, scratch);
  float* const sum = table.skips_sums ? nullptr : features;
  float* const max = table.has_maxima ? features + table.vector_size : nullptr;
  for (int64_t i = 0; i < table.vector_size; i++) features[i] = 0;
  for (int64_t i = 0; max && i < table.vector_size; i++) max[i] = count ? -std::numeric_limits<float>::infinity() : 0;
  if (table.vector_size) pool_vectors<Number>(table, rows, count, sum, max);
  float* out = features + table.vector_size * (1 + table.has_maxima);
  if (!table.side) return;
  Chain<Size> there(size), back(size);
  there.clear();
  back.clear();
  for (int64_t t = 0; t < count; t++) {
    const int64_t row = rows[t], next = rows[t + 1 < count ? t + 1 : t];
    const int64_t row_back = rows[count - 1 - t], next_back = rows[t + 1 < count ? count - 2 - t : 0];
    forward.append(there, row, next);
    if (table.has_backward) backward.append(back, row_back, next_back);
  }
  there.write(out);
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
    pool_vectors<Number>(table, rows + place(t), 1, table.vector_size ? out : nullptr, nullptr);
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
  const auto add = [&](auto* numbers) {
    pool(RowList<std::decay_t<decltype(*numbers)>>{&numbers, &scale, 1, width}, sum, nullptr);
  };
  switch (number) {
    case FLOAT32: return add(static_cast<const float*>(row));
    case FLOAT16: return add(static_cast<const Half*>(row));
    case BFLOAT16: return add(static_cast<const Brain*>(row));
    default: return add(static_cast<const int8_t*>(row));
  }
}

void add_rows(const float* const* rows, int64_t count, int64_t width, float* sum) {
  pool(RowList<float>{rows, nullptr, count, width}, sum, nullptr);
}
