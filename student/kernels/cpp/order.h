// The ids of a part's sequences, one after the other across their ends: which rows are to be fetched next.
// After the last id, 0 follows: fetching row 0 in vain does no harm.
#pragma once
#include "batch.h"

// One token's product takes about as long as half a memory access, so rows are fetched two tokens ahead.
constexpr int DISTANCE = 2;

class Forward {
 public:
  Forward(const Batch& batch, Part part)
      : next_(batch.ids + batch.starts[part.first]), end_(batch.ids + batch.starts[part.last]) {}

  int64_t next() { return next_ < end_ ? *next_++ : 0; }

 private:
  const int64_t *next_, *end_;
};

// Each sequence from its end to its start.
class Backward {
 public:
  Backward(const Batch& batch, Part part)
      : ids_(batch.ids), starts_(batch.starts), following_(part.first), last_(part.last) {}

  int64_t next() {
    while (place_ == start_) {
      if (following_ == last_) return 0;
      start_ = starts_[following_];
      place_ = starts_[++following_];
    }
    return ids_[--place_];
  }

 private:
  const int64_t *ids_, *starts_;
  int64_t following_, last_, start_ = 0, place_ = 0;
};

template <class Order>
Order ahead(const Batch& batch, Part part) {
  Order order(batch, part);
  for (int i = 0; i < DISTANCE; i++) order.next();
  return order;
}
