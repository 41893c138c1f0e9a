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

  // Fetches a row that is read soon, if it is there.
  void fetch_row(int32_t row) const {
    if (static_cast<size_t>(row) >= rows_.size()) return;
    if (const float* found = rows_[static_cast<size_t>(row)].numbers.load(std::memory_order_acquire))
      fetch(found, static_cast<int64_t>(width_ * sizeof *found));
  }

  // The numbers of a row, which make(out) computes; in `spare` if it is not among those that are kept.
  template <class Make>
  const float* of(int32_t row, std::vector<float>& spare, Make make) const {
    if (static_cast<size_t>(row) >= rows_.size()) {
      spare.resize(width_);
      make(spare.data());
      return spare.data();
    }
    std::atomic<const float*>& known = rows_[static_cast<size_t>(row)].numbers;
    if (const float* found = known.load(std::memory_order_acquire)) return found;
    auto made = std::make_unique<Line[]>((width_ + Line::SIZE - 1) / Line::SIZE);
    make(made[0].numbers);
    const float* first = nullptr;
    // Another thread may have been faster. Both have the same numbers.
    if (!known.compare_exchange_strong(first, made[0].numbers, std::memory_order_acq_rel)) return first;
    return made.release()->numbers;
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

  size_t width_;
  mutable std::vector<Row> rows_;
};
