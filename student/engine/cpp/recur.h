// Element-wise recurrences. Included by kernels.cpp, once per level.

// WIDTH vectors of the states from number `i` on. They stay in registers while tokens pass by.
template <int WIDTH, class Number>
INLINE void recur_columns(const void* const* steps, int64_t count, int64_t ahead, int64_t by, int64_t begin, int64_t size,
                          int64_t i, float* states) {
  Lanes last[WIDTH], max[WIDTH], min[WIDTH];
  float* const places = states + i;
  UNROLL for (int k = 0; k < WIDTH; k++) {
    last[k] = lanes_of(places + k * LANES, LANES);
    max[k] = lanes_of(places + size + k * LANES, LANES);
    min[k] = lanes_of(places + 2 * size + k * LANES, LANES);
  }
  for (int64_t t = 0; t < count; t++) {
    const Number* gates = static_cast<const Number*>(steps[t * by]) + begin + i;
    if (t < ahead) {  // a little with each token: many at once would wait for each other
      const Number* later = static_cast<const Number*>(steps[(t + count) * by]) + begin + i;
      fetch(later, WIDTH * LANES * sizeof(Number));
      fetch(later + size, WIDTH * LANES * sizeof(Number));
    }
    UNROLL for (int k = 0; k < WIDTH; k++) {
      const Lanes state = lanes_of(gates + k * LANES, LANES) * last[k] + lanes_of(gates + size + k * LANES, LANES);
      last[k] = state;
      max[k] = state > max[k] ? state : max[k];
      min[k] = state < min[k] ? state : min[k];
    }
  }
  UNROLL for (int k = 0; k < WIDTH; k++) {
    store_lanes(last[k], places + k * LANES, LANES);
    store_lanes(max[k], places + size + k * LANES, LANES);
    store_lanes(min[k], places + 2 * size + k * LANES, LANES);
  }
}

template <class Number>
INLINE void recur_as(const void* const* steps, int64_t count, int64_t ahead, int64_t by, int64_t begin, int64_t size,
                     float* states) {
  constexpr int WIDTH = 4;
  int64_t i = 0;
  for (; i + WIDTH * LANES <= size; i += WIDTH * LANES)
    recur_columns<WIDTH, Number>(steps, count, ahead, by, begin, size, i, states);
  for (; i < size; i += LANES) recur_columns<1, Number>(steps, count, ahead, by, begin, size, i, states);
}

// Moves the last state, the maxima and the minima of one way on by some tokens, each of which scales the state and adds to
// it. The next token's steps are `by` places further: `size` gates from `begin` on, then as many values.
// Those of the first `ahead` of the tokens behind these are fetched.
void recur(const void* const* steps, Number number, int64_t count, int64_t ahead, int64_t by, int64_t begin, int64_t size,
           float* states) {
  if (number == FLOAT16) recur_as<Half>(steps, count, ahead, by, begin, size, states);
  else recur_as<float>(steps, count, ahead, by, begin, size, states);
}
