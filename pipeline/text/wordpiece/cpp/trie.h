// Pieces of words and their ids, found by what a text begins with.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

class Trie {
 public:
  using Piece = std::pair<std::string_view, int32_t>;

  // Copies the pieces, which differ from each other.
  explicit Trie(std::vector<Piece> pieces) {
    // Sorted pieces with a common beginning are neighbours, so each node is a range of them.
    std::sort(pieces.begin(), pieces.end());
    struct Range {
      size_t begin, end, depth;  // of the pieces that go through a node
    };
    std::vector<Range> nodes{{0, pieces.size(), 0}};
    for (size_t node = 0; node < nodes.size(); ++node) {
      auto [begin, end, depth] = nodes[node];
      children_.push_back(static_cast<uint32_t>(nodes.size()));
      const bool ends_here = begin < end && pieces[begin].first.size() == depth;
      ids_.push_back(ends_here ? pieces[begin++].second : NONE);
      while (begin < end) {
        const char byte = pieces[begin].first[depth];
        const size_t first = begin;
        while (begin < end && pieces[begin].first[depth] == byte) ++begin;
        nodes.push_back({first, begin, depth + 1});
        bytes_.push_back(byte);
      }
    }
    children_.push_back(static_cast<uint32_t>(nodes.size()));
  }

  // Bytes of the longest piece that `text` begins with, and its id; 0 bytes where there is none.
  std::pair<size_t, int32_t> longest(std::string_view text) const {
    std::pair<size_t, int32_t> found{0, NONE};
    size_t node = 0;
    for (size_t read = 0; read < text.size(); ++read) {
      const char* const first = bytes_.data() + children_[node];
      // A node's children have contiguous bytes, and `memchr` searches them with vector instructions.
      const void* const child = std::memchr(first, text[read], children_[node + 1] - children_[node]);
      if (!child) break;
      node = static_cast<size_t>(static_cast<const char*>(child) - bytes_.data());
      if (ids_[node] != NONE) found = {read + 1, ids_[node]};
    }
    return found;
  }

 private:
  static constexpr int32_t NONE = -1;

  // Nodes are numbered level by level, so that the children of a node follow each other; node 0 is the root.
  std::string bytes_{'\0'};         // which leads to each node
  std::vector<uint32_t> children_;  // of node n: children_[n] to children_[n + 1]
  std::vector<int32_t> ids_;        // of the piece that ends at each node
};
