// Text to ids, as the `tokenizers` library's WordPiece with BERT's normalizer and splitting gives them.
//
// That normalizer and splitting treat each character for itself, so that the file holds what each becomes: a part of a
// word, a space, or a word of its own.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../../pipeline/text/wordpiece/cpp/trie.h"
#include "../../../pipeline/text/wordpiece/cpp/word_cache.h"
#include "file.h"

enum CharacterKind : uint8_t { IN_WORD, SPACE, WORD_OF_ITS_OWN, ELSEWHERE };

// What a character becomes, in a cell of a table; ELSEWHERE if it has no place in one.
struct Cell {
  uint8_t kind;
  uint8_t characters;
  uint8_t bytes;
  char text[5];
};

class Tokenizer {
 public:
  // Of a student with that many tokens.
  Tokenizer(const File& file, const Json& settings, int64_t num_tokens);

 private:
  friend class TextReader;
  struct Run {
    int32_t first;  // the first of the characters that become the same; those of the next run begin behind them
    bool is_itself;
    uint8_t kind;
    std::string_view text;  // without the spaces around it
  };
  static constexpr int32_t NUM_CELLS = 0x3000;

  void read_characters(const File& file);
  void read_pieces(const File& file, const std::string& prefix, int64_t num_tokens);
  const Run& run_of(int32_t code) const;
  Cell cell_of(int32_t code) const;

  std::vector<Run> runs_;
  std::vector<Cell> cells_;
  std::vector<Trie> tries_;  // of the beginnings of words, and of how they go on
  std::vector<std::pair<std::string, int32_t>> added_;
  std::string firsts_;  // of the bytes that added tokens begin with
  int32_t unknown_;
  int64_t most_characters_;
};

// Reads texts; one thread at a time. It remembers words.
class TextReader {
 public:
  explicit TextReader(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Appends the ids of a text that is UTF-8, until there are at least `most` of them, or all.
  void read(std::string_view text, int64_t most, std::vector<int32_t>& ids);

 private:
  struct Character {
    uint8_t kind;
    int64_t characters;
    std::string_view text;
  };
  // A word of a text, and its place among those that are remembered, or null if it is too long.
  struct Word {
    const char* start;
    int64_t bytes;
    WordCache::Key key;
    WordCache::Entry* entry;
  };
  static constexpr size_t AHEAD = 8;  // words that are found, and their places fetched, before the first one is read

  void read_part(const char* text, int64_t begin, int64_t end, int64_t size, int64_t most, std::vector<int32_t>& ids);
  Character next(const char* text, int64_t& at, char (&own)[5]) const;
  uint8_t kind_of_next(const char* text, int64_t& at) const;
  Word word_at(const char* start, int64_t bytes, int64_t readable);
  void append_word(const Word& word, std::vector<int32_t>& ids);
  void append_new_word(const char* word, int64_t bytes, std::vector<int32_t>& ids);

  const Tokenizer& tokenizer_;
  WordCache cache_;
  std::string normal_;
};
