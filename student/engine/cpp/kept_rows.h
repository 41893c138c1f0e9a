// What depends on a token alone, such as a layer's products with its row: computed when a text first has the token, and
// kept. Threads share it.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels.h"

// To the nearest half, of two equally near ones to the even one; no larger than the largest one.
inline uint16_t half_of(float number) {
  constexpr float LARGEST = 65504;
  float size = std::fabs(number);
  if (!(size <= LARGEST)) size = LARGEST;
  size *= 0x1p-112f;  // the exponents differ by 112
  uint32_t bits;
  std::memcpy(&bits, &size, sizeof bits);
  return static_cast<uint16_t>((bits + 0xfff + (bits >> 13 & 1)) >> 13 | (std::signbit(number) ? 0x8000 : 0));
}

class KeptRows {
 public:
  static constexpr int64_t MOST = 1 << 26;  // numbers: 256 MB, which the rows of no real vocabulary need

  // `number` is the type in which rows are kept: float32, or float16 where their readers round anyway.
  KeptRows(int64_t num_rows, int64_t width, int64_t most = MOST, Number number = FLOAT32)
      : width_(static_cast<size_t>(width)), is_half_(number == FLOAT16),
        rows_(static_cast<size_t>(std::min(num_rows, most / width))) {}

  // The numbers of a row, or null.
  const void* find(int32_t row) const {
    const auto place = static_cast<size_t>(row);
    return place < rows_.size() ? rows_[place].numbers.load(std::memory_order_acquire) : nullptr;
  }

  // The floats of a row, which make(&row, 1, out) computes; in `spare` if it is not among those that are kept.
  template <class Make>
  const float* of(int32_t row, std::vector<float>& spare, Make make) const {
    if (const void* found = find(row)) return static_cast<const float*>(found);
    spare.resize(width_);
    make(&row, 1, spare.data());
    if (static_cast<size_t>(row) >= rows_.size()) return spare.data();
    put(row, spare.data());
    return static_cast<const float*>(find(row));
  }

  // Keeps those of some rows that are not there yet. make(rows, count, out) computes several at once.
  template <class Make>
  void keep(const std::vector<int32_t>& rows, Make make) const {
    std::vector<int32_t> missing;
    for (const int32_t row : rows)
      if (static_cast<size_t>(row) < rows_.size() && !find(row)) missing.push_back(row);
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    std::vector<float> made(std::min(missing.size(), AT_ONCE) * width_);
    for (size_t begin = 0; begin < missing.size(); begin += AT_ONCE) {
      const size_t count = std::min(missing.size() - begin, AT_ONCE);
      make(missing.data() + begin, static_cast<int64_t>(count), made.data());
      for (size_t n = 0; n < count; ++n) put(missing[begin + n], made.data() + n * width_);
    }
  }

  // Fetches a row that is read soon, if it is there.
  void fetch_row(int32_t row) const {
    if (const void* found = find(row)) fetch(found, static_cast<int64_t>(bytes()));
  }

 private:
  // Of the processor's cache, so that no vector of a row lies in two of them.
  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  struct Row {
    ~Row() { delete[] static_cast<const Line*>(numbers.load()); }
    std::atomic<const void*> numbers{nullptr};
  };

  size_t bytes() const { return width_ * (is_half_ ? sizeof(uint16_t) : sizeof(float)); }

  void put(int32_t row, const float* numbers) const {
    auto made = std::make_unique<Line[]>((bytes() + sizeof(Line) - 1) / sizeof(Line));
    if (is_half_) std::transform(numbers, numbers + width_, reinterpret_cast<uint16_t*>(made.get()), half_of);
    else std::memcpy(made.get(), numbers, bytes());
    const void* before = nullptr;
    std::atomic<const void*>& place = rows_[static_cast<size_t>(row)].numbers;
    // Another thread may have been faster. Both have the same numbers.
    if (place.compare_exchange_strong(before, made.get(), std::memory_order_acq_rel)) made.release();
  }

  static constexpr size_t AT_ONCE = 48;  // rows, which read a layer's weights together

  size_t width_;
  bool is_half_;
  mutable std::vector<Row> rows_;
};
