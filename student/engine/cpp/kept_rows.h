// What depends on a token alone, such as a layer's products with its row: computed when a text first has the token, and
// kept. Threads share it.
#pragma once
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

class KeptRows {
 public:
  static constexpr int64_t MOST = 1 << 26;  // numbers: 256 MB, which the rows of no real vocabulary need

  KeptRows(int64_t num_rows, int64_t width, int64_t most = MOST)
      : width_(static_cast<size_t>(width)), rows_(static_cast<size_t>(std::min(num_rows, most / width))) {}

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
    auto made = std::make_unique<float[]>(width_);
    make(made.get());
    const float* first = nullptr;
    // Another thread may have been faster. Both have the same numbers.
    if (!known.compare_exchange_strong(first, made.get(), std::memory_order_acq_rel)) return first;
    return made.release();
  }

 private:
  struct Row {
    ~Row() { delete[] numbers.load(); }
    std::atomic<const float*> numbers{nullptr};
  };

  size_t width_;
  mutable std::vector<Row> rows_;
};
