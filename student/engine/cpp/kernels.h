// The arithmetic, once per level of instructions: kernels.cpp is compiled for each, dispatch.cpp chooses.
#pragma once
#include <cstdint>

#include "file.h"

// Tokens of a text that are read at once: their rows stay in the nearest cache, while those of the next ones are fetched.
constexpr int64_t PIECE = 16;

// Of functions that all levels compile: the linker would take one level's for all.
#define ALWAYS_INLINE inline __attribute__((always_inline))

// Fetches what is read soon.
ALWAYS_INLINE void fetch(const void* data, int64_t bytes) {
  constexpr int64_t CACHE_LINE = 64;
  for (int64_t i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch(static_cast<const char*>(data) + i);
}

// A row per token: its vector, its matrix and its matrix of the way back, side by side. float32 rows are the numbers
// themselves, others what is added to the neutral row, the zero vector and identity matrices. Tokens whose matrices are
// the identity come last, and have vectors alone.
struct RowTable {
  const void* data;
  Number number;
  const float* scales;  // of int8: one per row and part
  int64_t width, vector_size, side;
  bool has_maxima, has_backward;
  int64_t whole;  // how many rows have matrices, or all of them if there are none
  const void* vectors;
  const float* vector_scales;  // of int8: one per vector
  bool skips_sums;             // of vectors, which are not read

  ALWAYS_INLINE int64_t bytes_of_number() const { return number == FLOAT32 ? 4 : number == INT8 ? 1 : 2; }
  // Where the vector of a row is.
  ALWAYS_INLINE const void* vector_at(int64_t row) const {
    const bool is_whole = row < whole;
    const auto* start = static_cast<const unsigned char*>(is_whole ? data : vectors);
    return start + (is_whole ? row * width : (row - whole) * vector_size) * bytes_of_number();
  }
  int64_t parts() const { return (vector_size > 0) + (side > 0) * (1 + has_backward); }
  int64_t features() const { return width + has_maxima * vector_size; }
  // Of a token: sum and product of all tokens up to it, and where there is a way back, of it and all that follow.
  int64_t token_features() const { return (vector_size + side * side) * (1 + has_backward); }
};

// Neighbouring columns of a layer, whose inputs are alike, such as a sum or a product.
struct Group {
  int64_t begin, size, number;  // its number among all groups of the layer
};

// A layer of `out` numbers, each the sum of inputs with weights, or what some groups of its columns give. Inputs of int8
// layers are rounded to 8 bits with a scale for each group.
struct Layer {
  const void* data;     // [out, in]
  Number number;        // float32, bfloat16 or int8
  const float* scales;  // of int8: [all groups, out]
  int64_t out, in;
  const Group* groups;
  int64_t num_groups;
};

// A layer in the order in which it is multiplied: for LANES outputs at a time, every `unit` of inputs one after another.
// A unit is 4 bytes of inputs: one float, two bfloat16, four int8, or two int8 as words of 16 bits.
struct PackedLayer {
  enum Arithmetic { FLOATS, PAIRS, BYTES, WORDS } arithmetic;
  int64_t out, lanes, units;           // out is a multiple of lanes
  const Group* groups;
  int64_t num_groups;
  int64_t* unit_ends;                  // of the groups
  uint32_t* weights;                   // [out / lanes, units, lanes]
  float* scales;                       // of rounded inputs: [groups, out]
  int32_t* corrections;                // of rounded inputs: [groups, out], what their offset adds

  ALWAYS_INLINE bool is_rounded() const { return arithmetic == BYTES || arithmetic == WORDS; }
  ALWAYS_INLINE int64_t per_unit() const { return arithmetic == BYTES ? 4 : arithmetic == FLOATS ? 1 : 2; }
};

// What attention finds of the tokens of a text.
struct TokenRows {
  const float* data;
  int64_t count, width;
};

struct Kernels {
  const char* name;
  bool (*is_supported)();
  // Which arithmetic a layer gets, and how many outputs there are at a time.
  PackedLayer (*plan)(const Layer& layer);
  void (*pack)(const Layer& layer, PackedLayer& packed);
  // The representation of one sequence, without bigrams; `scratch` has room for 2 * width numbers.
  void (*encode)(const RowTable& table, const int32_t* rows, int64_t count, float* features, float* scratch);
  // The features of each token of a sequence, one token after another; `scratch` as for `encode`. There are no maxima.
  void (*scan)(const RowTable& table, const int32_t* rows, int64_t count, float* features, float* scratch);
  // sum += row.
  void (*add_row)(const void* row, Number number, float scale, int64_t width, float* sum);
  // sum += all rows.
  void (*add_rows)(const float* const* rows, int64_t count, int64_t width, float* sum);
  // What is read of a row of inputs, which begins with that of the first group: `units` numbers, and of rounded ones
  // a scale for each group.
  void (*prepare)(const PackedLayer& packed, const float* inputs, uint32_t* units, float* scales);
  // `count` is one row, or there is room for the next multiple of 24 rows.
  void (*multiply)(const PackedLayer& packed, const uint32_t* units, const float* scales, int64_t count, float* out);
  // numbers + bias, not below 0; then without their mean and with a variance of 1. Either may be left out.
  void (*activate)(float* numbers, int64_t count, const float* bias, bool normalise);
  // out = weights * numbers + bias.
  void (*linear)(const float* numbers, int64_t count, const float* weights, const float* bias, int64_t out_count,
                 float* out);
  // What a vector finds in the other text: the mean of the rows, weighted by the softmax of its products with their vectors
  // times `scale`; zeros where there are no rows. Products become shares.
  void (*attend)(const TokenRows& rows, float scale, float* products, float* seen);
  // Moves the states, maxima and minima of one way of an element-wise recurrence on. Steps are float32 or float16. See
  // recur.h.
  void (*recur)(const void* const* steps, Number number, int64_t count, int64_t ahead, int64_t by, int64_t begin,
                int64_t size, float* states);
};

const Kernels& kernels();
