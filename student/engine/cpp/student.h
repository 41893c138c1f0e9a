// A student as its file describes it, and its answers for one thread.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "tokenizer.h"

enum class Pairing { NONE, JOINT, DIFFERENCE, COMPARISON };

// A vector of numbers that begin where cache lines do.
template <class T>
class Aligned {
 public:
  explicit Aligned(int64_t size = 0)
      : size_(size), memory_(static_cast<size_t>(size) * sizeof(T) + 64),
        start_(memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64)) {}
  Aligned(Aligned&&) = default;
  Aligned& operator=(Aligned&&) = default;
  T* data() { return reinterpret_cast<T*>(start_); }
  const T* data() const { return reinterpret_cast<const T*>(start_); }
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  std::vector<unsigned char> memory_;
  unsigned char* start_;
};

class Bigrams {
 public:
  Bigrams() = default;
  Bigrams(const File& file, int64_t num_tokens, int64_t size);
  int64_t size() const { return size_; }
  // Adds the vectors of the pairs of neighbouring ids.
  void add(const int32_t* ids, int64_t count, float* sum) const;

 private:
  static uint64_t key(int32_t first, int32_t second) { return uint64_t(uint32_t(first)) << 32 | uint32_t(second); }
  size_t place(uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_; }

  int64_t size_ = 0, row_bytes_ = 0;
  const Tensor* table_ = nullptr;
  const float* scales_ = nullptr;
  int shift_ = 63;
  std::vector<std::pair<uint64_t, int32_t>> slots_;  // a row of -1 is none
};

// What a thread needs to answer; kept from call to call.
struct Workspace {
  explicit Workspace(const struct Student& student);
  TextReader reader;
  std::vector<int32_t> ids[2], rows, joint;
  Aligned<float> features, scratch, hidden, scales;
  Aligned<uint32_t> units;
};

struct Student {
  explicit Student(const std::string& path);
  Student(const Student&) = delete;

  static constexpr int64_t BLOCK = 48;  // inputs whose head is multiplied at once

  int64_t features_of_text() const { return table.features() + bigrams.size(); }
  bool is_pair() const { return pairing != Pairing::NONE; }
  int64_t num_answers() const { return kind == DISTILL_SCORE ? 1 : num_logits; }

  // Of at most BLOCK inputs: text(side, n) is a text of input n.
  template <class Text>
  void logits(Workspace& work, int64_t count, Text text, float* out) const;
  void encode(Workspace& work, std::string_view text, float* features) const;
  void answer(const float* logits, float* answers, uint8_t* is_chosen) const;

  std::unique_ptr<Workspace> borrow() const;
  void give_back(std::unique_ptr<Workspace> work) const;

  const File file;
  const Kernels& arithmetic;
  std::string task;
  distill_kind kind;
  std::vector<std::string> labels;
  Pairing pairing;
  int64_t num_tokens, num_logits, max_tokens, room_single, room_pair, window;
  int32_t pad;
  std::vector<int32_t> before, between, after;
  RowTable table{};
  const int32_t* row_of_token;
  Bigrams bigrams;
  const float* bins = nullptr;
  const float* temperature = nullptr;  // of labels: what logits are divided by before they become probabilities
  const float* bias = nullptr;         // added to logits, divided, before labels are chosen
  bool has_hidden, normalises;
  int64_t hidden_size;
  const float* hidden_bias = nullptr;
  const float* out_weights;
  const float* out_bias;
  int64_t num_inputs;  // of the head
  std::vector<int64_t> group_ends;
  PackedLayer packed{};
  std::unique_ptr<Tokenizer> tokenizer;

 private:
  void read_table(const Json& settings);
  void read_head(const Json& settings);
  void read_answers(const Json& settings);
  void pack(const Layer& layer);
  void set_groups();
  void read_input(Workspace& work, const std::string_view* texts) const;
  void head_inputs(Workspace& work, const std::string_view* texts) const;
  void represent(Workspace& work, const std::vector<int32_t>& ids, float* features) const;
  void represent_window(Workspace& work, const int32_t* ids, int64_t count, float* features) const;
  void compare(float* features) const;
  void finish(float* numbers, float* out) const;

  Aligned<uint32_t> weights_;
  Aligned<float> weight_scales_;
  std::vector<int32_t> corrections_;
  std::vector<int64_t> unit_ends_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

template <class Text>
void Student::logits(Workspace& work, int64_t count, Text text, float* out) const {
  for (int64_t n = 0; n < count; ++n) {
    const std::string_view texts[2] = {text(0, n), is_pair() ? text(1, n) : std::string_view()};
    head_inputs(work, texts);
    if (has_hidden)
      arithmetic.prepare(packed, work.features.data(), work.units.data() + n * packed.units,
                         work.scales.data() + n * packed.groups);
    else
      finish(work.features.data(), out + n * num_logits);
  }
  if (!has_hidden) return;
  arithmetic.multiply(packed, work.units.data(), work.scales.data(), count, work.hidden.data());
  for (int64_t n = 0; n < count; ++n) finish(work.hidden.data() + n * packed.out, out + n * num_logits);
}
