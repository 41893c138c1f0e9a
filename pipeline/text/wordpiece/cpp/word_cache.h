// The ids of the words that were read last: a table of fixed size, in which a word has one place.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

class WordCache {
 public:
  // Key, count and ids together fill one line of 64 bytes, which bounds the length of cached words.
  static constexpr int64_t MOST_BYTES = 23;
  static constexpr int32_t MOST_IDS = 9;

  // A word as three numbers: its bytes, then zeros, then their number.
  struct Key {
    uint64_t parts[3];
    bool operator==(const Key& other) const {
      return ((parts[0] ^ other.parts[0]) | (parts[1] ^ other.parts[1]) | (parts[2] ^ other.parts[2])) == 0;
    }
  };

  // A line of the processor's cache: an empty one has the key of no word.
  struct alignas(64) Entry {
    Key key{};
    int32_t count = 0;
    int32_t ids[MOST_IDS]{};
  };

  // `bytes` is 1 to MOST_BYTES; `readable` is how many may be read.
  static Key key(const char* word, int64_t bytes, int64_t readable) {
    Key key{};
    if (readable >= int64_t{sizeof(Key)}) {
      std::memcpy(&key, word, sizeof(Key));  // of a fixed size, which is faster, and then cut
      for (int64_t part = 0; part < 3; ++part) {
        const int64_t kept = std::clamp<int64_t>(bytes - 8 * part, 0, 8);
        key.parts[part] &= kept == 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * kept) - 1;
      }
    } else {
      std::memcpy(&key, word, static_cast<size_t>(bytes));
    }
    key.parts[2] |= static_cast<uint64_t>(bytes) << 56;
    return key;
  }

  Entry& place(const Key& key) {
    uint64_t hash = key.parts[0] * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32 ^ key.parts[1]) * 0xC2B2AE3D27D4EB4Fu;
    hash = (hash ^ hash >> 32 ^ key.parts[2]) * 0x165667B19E3779F9u;
    // The highest bits of a product depend on all bits of its factors.
    return entries_[hash >> (64 - BITS)];
  }

 private:
  static constexpr int BITS = 15;  // 2 MB

  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << BITS);
};
