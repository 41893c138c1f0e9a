// Text to ids, where each character has its fixed effect: see `pipeline.text.wordpiece.compiled_wordpiece`.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trie.h"
#include "word_cache.h"

enum Kind : uint8_t { IN_WORD, SPACE, WORD_OF_ITS_OWN, UNKNOWN };

// What a character becomes; laid out as numpy does in compiled_wordpiece.py.
struct Character {
  uint8_t kind;
  uint8_t characters;
  uint8_t bytes;
  char text[5];
};
static_assert(sizeof(Character) == 8);

constexpr uint32_t NUM_CHARACTERS = 0x3000;

struct Model {
  const Character* table;  // NUM_CHARACTERS of them
  Trie beginnings;
  Trie continuations;
  std::vector<std::vector<std::string>> added;  // tokens found anywhere in a text; those of one list begin alike
  int32_t unknown;
  int64_t most_characters;
};

// Reads sentences; one thread at a time.
class Reader {
 public:
  static constexpr int64_t NOT_UNDERSTOOD = -1;

  explicit Reader(const Model& model) : model_(model) {}

  // Writes the ids of text[begin, end) and returns their number, at most end - begin, or NOT_UNDERSTOOD where there is
  // an added token or a character beyond the table. `size` is that of the whole text.
  int64_t read(const char* text, int64_t begin, int64_t end, int64_t size, int32_t* ids) {
    if (has_added({text + begin, static_cast<size_t>(end - begin)})) return NOT_UNDERSTOOD;
    int32_t* out = ids;
    for (int64_t at = begin; at < end;) {
      const int64_t start = at;
      const uint8_t kind = next(text, end, at).kind;
      if (kind == SPACE) continue;
      if (kind == UNKNOWN) return NOT_UNDERSTOOD;
      if (kind == IN_WORD) at = word_end(text, end, at);
      out += cached_word(text + start, at - start, size - start, out);
    }
    return out - ids;
  }

 private:
  bool has_added(std::string_view sentence) const {
    for (const auto& tokens : model_.added) {
      // Most sentences contain no bracket at all, so one search for the first byte skips the whole list.
      if (sentence.find(tokens.front().front()) == sentence.npos) continue;
      for (const auto& token : tokens) {
        if (sentence.find(token) != sentence.npos) return true;
      }
    }
    return false;
  }

  // The character at `at`, which is moved behind it. Text that is not UTF-8 is UNKNOWN, never read beyond its end.
  const Character& next(const char* text, int64_t end, int64_t& at) const {
    static constexpr Character BEYOND{UNKNOWN, 0, 0, {}};
    const auto byte = [&](int64_t k) { return static_cast<uint8_t>(text[at + k]); };
    uint32_t code = byte(0);
    int64_t bytes = 1;
    if (code >= 0x80) {
      bytes = code < 0xE0 ? 2 : 3;
      if (code < 0xC0 || code >= 0xE3 || at + bytes > end) return BEYOND;
      code = bytes == 2 ? (code & 0x1F) << 6 | (byte(1) & 0x3F)
                        : (code & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    }
    at += bytes;
    return model_.table[code];
  }

  int64_t word_end(const char* text, int64_t end, int64_t at) const {
    for (int64_t behind = at; at < end; at = behind) {
      if (next(text, end, behind).kind != IN_WORD) break;
    }
    return at;
  }

  int64_t cached_word(const char* word, int64_t bytes, int64_t readable, int32_t* ids) {
    if (bytes > WordCache::MOST_BYTES) return new_word(word, bytes, ids);
    const WordCache::Key key = WordCache::key(word, bytes, readable);
    WordCache::Entry& entry = cache_.place(key);
    // Natural text repeats few words, so most of them are found here and never split.
    if (entry.key == key) {
      std::copy_n(entry.ids, entry.count, ids);
      return entry.count;
    }
    const int64_t count = new_word(word, bytes, ids);
    if (count <= WordCache::MOST_IDS) {
      entry.key = key;
      entry.count = static_cast<int32_t>(count);
      std::copy_n(ids, count, entry.ids);
    }
    return count;
  }

  int64_t new_word(const char* word, int64_t bytes, int32_t* ids) {
    normal_.clear();
    int64_t characters = 0;
    for (int64_t at = 0; at < bytes;) {
      const Character& character = next(word, bytes, at);
      normal_.append(character.text, character.bytes);
      characters += character.characters;
    }
    if (characters == 0) return 0;
    // BERT's WordPiece makes overlong words unknown, so that its search stays short.
    const int64_t count = characters > model_.most_characters ? 0 : pieces(ids);
    if (count) return count;
    ids[0] = model_.unknown;
    return 1;
  }

  // The longest piece first, then the longest one of what is left; 0 where nothing fits.
  int64_t pieces(int32_t* ids) const {
    int64_t count = 0;
    for (std::string_view left = normal_; !left.empty();) {
      const auto [bytes, id] = (count ? model_.continuations : model_.beginnings).longest(left);
      if (!bytes) return 0;
      ids[count++] = id;
      left.remove_prefix(bytes);
    }
    return count;
  }

  const Model& model_;
  WordCache cache_;
  std::string normal_;
};
