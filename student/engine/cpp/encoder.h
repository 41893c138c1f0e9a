// From the rows of a sequence's tokens to its representation: sum and maxima of vectors and both products, in one pass;
// and to those of all its beginnings and ends.
// Included by kernels.cpp, once per level.

struct Signed8 {
  int8_t value;
};

constexpr int64_t CACHE_LINE = 64;  // bytes

// sum += scale * row
INLINE void add_scaled(float* sum, const int8_t* row, float scale, int64_t width) {
  for (int64_t i = 0; i < width; i++) sum[i] += scale * static_cast<float>(row[i]);
}

// One part of a row of int8 numbers. Fetches that of the next row.
INLINE const int8_t* scaled_part(const RowTable& table, int64_t row, int64_t next, int64_t begin, int64_t width) {
  const auto* numbers = static_cast<const int8_t*>(table.data) + begin;
  for (int64_t i = 0; i < width; i += CACHE_LINE) __builtin_prefetch(numbers + next * table.width + i);
  return numbers + row * table.width;
}

// A matrix of such a table as floats, in `copy`.
INLINE const float* widened_matrix(const RowTable& table, int64_t row, int64_t next, int64_t begin, int64_t part,
                                   float* copy) {
  const int64_t size = table.side * table.side;
  const int8_t* numbers = scaled_part(table, row, next, begin, size);
  const float scale = table.scales[row * table.parts() + part];
  for (int64_t i = 0; i < size; i++) copy[i] = scale * static_cast<float>(numbers[i]);
  for (int64_t i = 0; i < size; i += table.side + 1) copy[i] += 1;
  return copy;
}

template <class Number>
struct RowReader {
  const RowTable& table;
  float* scratch;
  INLINE const Number* vector(int64_t row) const { return start(row); }
  INLINE const Number* forward(int64_t row, int64_t) const { return start(row) + table.vector_size; }
  INLINE const Number* backward(int64_t row, int64_t) const {
    return start(row) + table.vector_size + table.side * table.side;
  }
  INLINE const Number* start(int64_t row) const { return static_cast<const Number*>(table.data) + row * table.width; }
};

template <>
struct RowReader<Signed8> {
  const RowTable& table;
  float* scratch;
  INLINE const float* forward(int64_t row, int64_t next) const {
    return widened_matrix(table, row, next, table.vector_size, table.vector_size > 0, scratch);
  }
  INLINE const float* backward(int64_t row, int64_t next) const {
    const int64_t size = table.side * table.side;
    return widened_matrix(table, row, next, table.vector_size + size, 1 + (table.vector_size > 0), scratch + size);
  }
};

// What is fetched while a matrix is used: the next one. A copy's is not where the numbers are, so this one.
template <class Number>
INLINE const Number* ahead_of(const Number* current, int64_t row, int64_t next, int64_t width) {
  return current + (next - row) * width;
}

// sum += vector, and max = max(max, vector) where there are maxima, without a copy of the vector.
INLINE void add_scaled_vector(const RowTable& table, int64_t row, int64_t next, float* sum, float* max) {
  const int8_t* numbers = scaled_part(table, row, next, 0, table.vector_size);
  const float scale = table.scales[row * table.parts()];
  if (!table.has_maxima) return add_scaled(sum, numbers, scale, table.vector_size);
  for (int64_t i = 0; i < table.vector_size; i++) {
    const float number = scale * static_cast<float>(numbers[i]);
    sum[i] += number;
    max[i] = number > max[i] ? number : max[i];
  }
}

template <class Number, class Size>
void encode_as(const RowTable& table, Size size, const int32_t* rows, int64_t count, float* features, float* scratch) {
  constexpr bool IS_COPIED = std::is_same_v<Number, Signed8>;
  const RowReader<Number> reader{table, scratch};
  float* const max = features + table.vector_size;
  for (int64_t i = 0; i < table.vector_size; i++) features[i] = 0;
  if (table.has_maxima)
    for (int64_t i = 0; i < table.vector_size; i++) max[i] = count ? -std::numeric_limits<float>::infinity() : 0;
  Chain<Size> there(size), back(size);
  there.clear();
  back.clear();
  for (int64_t t = 0; t < count; t++) {
    const int64_t row = rows[t], next = rows[t + 1 < count ? t + 1 : t];
    const int64_t row_back = rows[count - 1 - t], next_back = rows[t + 1 < count ? count - 2 - t : 0];
    const auto ahead = [&](auto* current, int64_t now, int64_t then) __attribute__((always_inline)) {
      return IS_COPIED ? current : ahead_of(current, now, then, table.width);
    };
    if (table.side) {
      const auto* matrix = reader.forward(row, next);
      there.append(matrix, ahead(matrix, row, next));
    }
    if (table.has_backward) {
      const auto* matrix = reader.backward(row_back, next_back);
      back.append(matrix, ahead(matrix, row_back, next_back));
    }
    if (!table.vector_size) continue;
    if constexpr (IS_COPIED) {
      add_scaled_vector(table, row, next, features, max);
    } else {
      const auto* vector = reader.vector(row);
      if (table.has_maxima)
        add_row_and_max(features, max, vector, table.vector_size, ahead(vector, row, next));
      else
        add_row(features, vector, table.vector_size, ahead(vector, row, next));
    }
  }
  float* out = features + table.vector_size * (1 + table.has_maxima);
  if (table.side) there.write(out);
  if (table.has_backward) back.write(out + table.side * table.side);
}

// The features of tokens on the way through a sequence, or on the way back, in their part of each token's features.
template <class Number, class Size>
void scan_way(const RowTable& table, Size size, bool is_back, const int32_t* rows, int64_t count, float* features,
              float* scratch) {
  constexpr bool IS_COPIED = std::is_same_v<Number, Signed8>;
  const RowReader<Number> reader{table, scratch};
  const auto place = [=](int64_t t) __attribute__((always_inline)) { return is_back ? count - 1 - t : t; };
  const auto ahead = [&](auto* current, int64_t now, int64_t then) __attribute__((always_inline)) {
    return IS_COPIED ? current : ahead_of(current, now, then, table.width);
  };
  Chain<Size> product(size);
  product.clear();
  const float* before = nullptr;
  for (int64_t t = 0; t < count; t++) {
    const int64_t row = rows[place(t)], next = rows[place(t + 1 < count ? t + 1 : t)];
    float* const out = features + place(t) * table.token_features();
    for (int64_t i = 0; i < table.vector_size; i++) out[i] = before ? before[i] : 0;
    before = out;
    if (table.vector_size) {
      if constexpr (IS_COPIED) add_scaled_vector(table, row, next, out, nullptr);
      else add_row(out, reader.vector(row), table.vector_size, ahead(reader.vector(row), row, next));
    }
    if (!table.side) continue;
    const auto* matrix = is_back ? reader.backward(row, next) : reader.forward(row, next);
    product.append(matrix, ahead(matrix, row, next));
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
    default: return sized<Signed8>(table, work);
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
