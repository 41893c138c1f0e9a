// What depends on a token alone, such as a layer's products with its row: computed when a text first has the token, and
// kept. Threads share it.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "kernels.h"

class KeptRows {
 public:
  static constexpr int64_t MOST = 1 << 26;  // numbers: 256 MB, which the rows of no real vocabulary need

  KeptRows(int64_t num_rows, int64_t width, int64_t most = MOST)
      : width_(static_cast<size_t>(width)), rows_(static_cast<size_t>(std::min(num_rows, most / width))) {}

  // The numbers of a row, or null.
  const float* find(int32_t row) const {
    const auto place = static_cast<size_t>(row);
    return place < rows_.size() ? rows_[place].numbers.load(std::memory_order_acquire) : nullptr;
  }

  // The numbers of a row, which make(&row, 1, out) computes; in `spare` if it is not among those that are kept.
  template <class Make>
  const float* of(int32_t row, std::vector<float>& spare, Make make) const {
    if (const float* found = find(row)) return found;
    spare.resize(width_);
    make(&row, 1, spare.data());
    if (static_cast<size_t>(row) >= rows_.size()) return spare.data();
    put(row, spare.data());
    return find(row);
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
    if (const float* found = find(row)) fetch(found, static_cast<int64_t>(width_ * sizeof *found));
  }

 private:
  // Of the processor's cache, so that no vector of a row lies in two of them.
  struct alignas(64) Line {
    static constexpr size_t SIZE = 16;
    float numbers[SIZE];
  };
  struct Row {
    ~Row() { delete[] reinterpret_cast<const Line*>(numbers.load()); }
    std::atomic<const float*> numbers{nullptr};
  };

  void put(int32_t row, const float* numbers) const {
    auto made = std::make_unique<Line[]>((width_ + Line::SIZE - 1) / Line::SIZE);
    std::copy_n(numbers, width_, made[0].numbers);
    const float* before = nullptr;
    std::atomic<const float*>& place = rows_[static_cast<size_t>(row)].numbers;
    // Another thread may have been faster. Both have the same numbers.
    if (place.compare_exchange_strong(before, made[0].numbers, std::memory_order_acq_rel)) made.release();
  }

  static constexpr size_t AT_ONCE = 48;  // rows, which read a layer's weights together

  size_t width_;
  mutable std::vector<Row> rows_;
};
