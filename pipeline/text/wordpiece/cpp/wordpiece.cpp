// The functions that Python calls through ctypes; see `pipeline.text.wordpiece.compiled_wordpiece`. An exception in C
// code would end the process, so none leaves a function.
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "wordpiece.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Threads take sentences in turns of 64, which balances long and short ones without much contention.
constexpr int64_t STRIDE = 64;

// Strings end to end: string n is bytes[starts[n], starts[n + 1]).
struct Strings {
  const char* bytes;
  const int64_t* starts;
  int64_t count;

  std::string_view operator[](int64_t n) const {
    return {bytes + starts[n], static_cast<size_t>(starts[n + 1] - starts[n])};
  }
};

std::vector<std::vector<std::string>> by_first_byte(const Strings& tokens) {
  std::map<char, std::vector<std::string>> lists;
  for (int64_t n = 0; n < tokens.count; ++n) lists[tokens[n].front()].emplace_back(tokens[n]);
  std::vector<std::vector<std::string>> result;
  for (auto& [first, list] : lists) result.push_back(std::move(list));
  return result;
}

// A model, and readers that keep the words they know from call to call.
class WordPiece {
 public:
  explicit WordPiece(Model model) : model_(std::move(model)) {}

  std::unique_ptr<Reader> borrow() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Reader>(model_);
    auto reader = std::move(idle_.back());
    idle_.pop_back();
    return reader;
  }

  void give_back(std::unique_ptr<Reader> reader) {
    const std::lock_guard lock(mutex_);
    // A reader's cache takes 2 MB, so the number of idle ones is bounded.
    if (idle_.size() < MOST_IDLE) idle_.push_back(std::move(reader));
  }

 private:
  static constexpr size_t MOST_IDLE = 64;
  const Model model_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Reader>> idle_;
};

// Sentences to be read, by however many threads.
struct Work {
  const Strings& sentences;
  int32_t* ids;
  int64_t* counts;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};

  void run(WordPiece& wordpiece) noexcept try {
    auto reader = wordpiece.borrow();
    const auto& [text, starts, count] = sentences;
    for (int64_t first; (first = next.fetch_add(STRIDE)) < count;) {
      for (int64_t n = first; n < std::min(first + STRIDE, count); ++n) {
        counts[n] = reader->read(text, starts[n], starts[n + 1], starts[count], ids + starts[n]);
      }
    }
    wordpiece.give_back(std::move(reader));
  } catch (const std::bad_alloc&) {
    failed = true;
  }
};

}  // namespace

// Of a table, which must stay where it is, the tokens of the vocabulary, their ids, and the added tokens. Null where there
// is no memory.
EXPORT void* wordpiece_new(const Character* table, const Strings* vocabulary, const int32_t* ids, const Strings* added,
                           const char* prefix, int32_t unknown, int64_t most_characters) try {
  const std::string_view continuing(prefix);
  std::vector<Trie::Piece> beginnings, continuations;
  for (int64_t n = 0; n < vocabulary->count; ++n) {
    const std::string_view token = (*vocabulary)[n];
    // A token such as "##s" may also begin a word, because texts can contain these signs.
    beginnings.emplace_back(token, ids[n]);
    if (token.substr(0, continuing.size()) == continuing) {
      continuations.emplace_back(token.substr(continuing.size()), ids[n]);
    }
  }
  return new WordPiece{{table, Trie(std::move(beginnings)), Trie(std::move(continuations)), by_first_byte(*added),
                        unknown, most_characters}};
} catch (const std::bad_alloc&) {
  return nullptr;
}

EXPORT void wordpiece_free(void* wordpiece) { delete static_cast<WordPiece*>(wordpiece); }

// The sentences are UTF-8. The ids of sentence n are written from ids + starts[n], their number to counts[n], -1 where
// the library must be asked. False where there is no memory.
EXPORT bool wordpiece_read(void* wordpiece, const Strings* sentences, int64_t threads, int32_t* ids, int64_t* counts) {
  auto& shared = *static_cast<WordPiece*>(wordpiece);
  Work work{*sentences, ids, counts};
  std::vector<std::thread> helpers;
  try {
    while (static_cast<int64_t>(helpers.size()) < threads - 1) helpers.emplace_back([&] { work.run(shared); });
  } catch (const std::system_error&) {  // no more threads: those that there are do the work
  } catch (const std::bad_alloc&) {
  }
  work.run(shared);
  for (auto& helper : helpers) helper.join();
  return !work.failed;
}

// The first lengths[n] ids of each sentence, from flat + offsets[n].
EXPORT void wordpiece_flatten(const int32_t* ids, const int64_t* starts, const int64_t* lengths, const int64_t* offsets,
                              int64_t sentences, int64_t* flat) {
  for (int64_t n = 0; n < sentences; ++n) std::copy_n(ids + starts[n], lengths[n], flat + offsets[n]);
}
