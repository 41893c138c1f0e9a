#include "tokenizer.h"

#include <algorithm>

namespace {

constexpr int64_t MOST_PIECE_BYTES = 2 << 20, MOST_BYTES_OF_CHARACTER = 64, MOST_ADDED = 4096;
constexpr int32_t NUM_CODES = 0x110000;

// Texts end to end in a tensor, by where each ends.
std::vector<std::string_view> texts_of(const File& file, const std::string& name, int64_t most_bytes) {
  const Tensor& bytes = file.get(name, UINT8, {-1});
  const Tensor& ends = file.get(name + ".ends", INT32, {-1});
  require(bytes.size() <= most_bytes, name + " are too long");
  std::vector<std::string_view> texts;
  int64_t begin = 0;
  for (int64_t n = 0; n < ends.size(); ++n) {
    const int64_t end = ends.integers()[n];
    require(end >= begin && end <= bytes.size(), name + " have an end that does not fit");
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data) + begin, static_cast<size_t>(end - begin));
    require(is_utf8(texts.back()), name + " are not UTF-8");
    begin = end;
  }
  return texts;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

// The character at `at` of a text that is UTF-8; `at` is moved behind it.
int32_t next_code(const char* text, int64_t& at) {
  const auto byte = [&](int64_t k) { return static_cast<uint8_t>(text[at + k]); };
  const int32_t first = byte(0);
  int32_t code = first;
  if (first >= 0xF0) {
    code = (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    at += 4;
  } else if (first >= 0xE0) {
    code = (first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    at += 3;
  } else if (first >= 0xC0) {
    code = (first & 0x1F) << 6 | (byte(1) & 0x3F);
    at += 2;
  } else {
    at += 1;
  }
  return code;
}

int64_t write_utf8(int32_t code, char* out) {
  const auto put = [&](int64_t k, int32_t value) { out[k] = static_cast<char>(value); };
  if (code < 0x80) return put(0, code), 1;
  if (code < 0x800) return put(0, 0xC0 | code >> 6), put(1, 0x80 | (code & 0x3F)), 2;
  if (code < 0x10000)
    return put(0, 0xE0 | code >> 12), put(1, 0x80 | (code >> 6 & 0x3F)), put(2, 0x80 | (code & 0x3F)), 3;
  return put(0, 0xF0 | code >> 18), put(1, 0x80 | (code >> 12 & 0x3F)), put(2, 0x80 | (code >> 6 & 0x3F)),
         put(3, 0x80 | (code & 0x3F)), 4;
}

}  // namespace

Tokenizer::Tokenizer(const File& file, const Json& settings, int64_t num_tokens)
    : unknown_(static_cast<int32_t>(settings.at("unknown").integer(0, num_tokens - 1))),
      most_characters_(settings.at("most_characters").integer(0, INT32_MAX)) {
  read_characters(file);
  read_pieces(file, settings.at("prefix").string(), num_tokens);
  const auto& names = settings.at("added").values();
  const auto& ids = settings.at("added_ids").values();
  require(names.size() == ids.size() && names.size() <= MOST_ADDED, "there are too many added tokens");
  for (size_t n = 0; n < names.size(); ++n) {
    const std::string& name = names[n].string();
    require(!name.empty(), "an added token is empty");
    added_.emplace_back(name, static_cast<int32_t>(ids[n].integer(0, num_tokens - 1)));
    if (firsts_.find(name[0]) == firsts_.npos) firsts_ += name[0];
  }
  std::sort(added_.begin(), added_.end(),  // the longest of those that begin alike is found first
            [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
}

void Tokenizer::read_characters(const File& file) {
  const auto texts = texts_of(file, "characters", MOST_PIECE_BYTES);
  const auto count = static_cast<int64_t>(texts.size());
  const Tensor& firsts = file.get("characters.firsts", INT32, {count});
  const Tensor& selves = file.get("characters.selves", UINT8, {count});
  int32_t least = 0;
  for (int64_t n = 0; n < count; ++n) {
    Run run{firsts.integers()[n], selves.data[n] != 0, IN_WORD, texts[static_cast<size_t>(n)]};
    require(run.first >= least && run.first < NUM_CODES, "characters do not rise");
    least = run.first + 1;
    if (run.text == " " && !run.is_itself) {
      run.kind = SPACE;
    } else if (run.text.size() > 2 && run.text.front() == ' ' && run.text.back() == ' ') {
      run.kind = WORD_OF_ITS_OWN;
      run.text = run.text.substr(1, run.text.size() - 2);
    }
    require(run.kind == SPACE || run.text.find(' ') == run.text.npos, "characters hold a space where none can be");
    require(run.text.size() <= MOST_BYTES_OF_CHARACTER, "a character becomes too much");
    runs_.push_back(run);
  }
  require(count > 0 && runs_[0].first == 0, "characters do not begin with the first one");
  for (int32_t code = 0; code < NUM_CELLS; ++code) cells_.push_back(cell_of(code));
}

void Tokenizer::read_pieces(const File& file, const std::string& prefix, int64_t num_tokens) {
  const auto texts = texts_of(file, "pieces", MOST_PIECE_BYTES);
  const Tensor& ids = file.get("pieces.ids", INT32, {static_cast<int64_t>(texts.size())});
  std::vector<Trie::Piece> beginnings, continuations;
  for (size_t n = 0; n < texts.size(); ++n) {
    const int32_t id = ids.integers()[n];
    require(id >= 0 && id < num_tokens, "a piece has an id that is not of the vocabulary");
    require(n == 0 || texts[n - 1] < texts[n], "pieces do not rise");
    beginnings.emplace_back(texts[n], id);
    if (texts[n].substr(0, prefix.size()) == prefix) continuations.emplace_back(texts[n].substr(prefix.size()), id);
  }
  tries_.emplace_back(std::move(beginnings));
  tries_.emplace_back(std::move(continuations));
}

const Tokenizer::Run& Tokenizer::run_of(int32_t code) const {
  const auto behind = std::upper_bound(runs_.begin(), runs_.end(), code,
                                       [](int32_t wanted, const Run& run) { return wanted < run.first; });
  return *(behind - 1);
}

Cell Tokenizer::cell_of(int32_t code) const {
  const Run& run = run_of(code);
  Cell cell{run.kind, 1, 0, {}};
  if (run.is_itself) {
    cell.bytes = static_cast<uint8_t>(write_utf8(code, cell.text));
  } else if (run.text.size() > sizeof cell.text) {
    cell.kind = ELSEWHERE;
  } else {
    cell.bytes = static_cast<uint8_t>(run.text.copy(cell.text, sizeof cell.text));
    cell.characters = static_cast<uint8_t>(count_characters(run.text));
  }
  return cell;
}

void TextReader::read(std::string_view text, int64_t most, std::vector<int32_t>& ids) {
  const auto size = static_cast<int64_t>(text.size());
  int64_t begin = 0;
  const auto is_first = [&](char byte) { return tokenizer_.firsts_.find(byte) != std::string::npos; };
  const char* const start = text.data();
  for (int64_t at = 0; at < size; ++at) {
    if (tokenizer_.firsts_.size() == 1) {
      const void* found = std::memchr(start + at, tokenizer_.firsts_[0], static_cast<size_t>(size - at));
      if (!found) break;
      at = static_cast<const char*>(found) - start;
    } else if (!is_first(start[at])) {
      continue;
    }
    for (const auto& [token, id] : tokenizer_.added_) {
      if (text.substr(static_cast<size_t>(at), token.size()) != token) continue;
      read_part(start, begin, at, size, most, ids);
      ids.push_back(id);
      begin = at + static_cast<int64_t>(token.size());
      at = begin - 1;
      break;
    }
  }
  read_part(start, begin, size, size, most, ids);
}

void TextReader::read_part(const char* text, int64_t begin, int64_t end, int64_t size, int64_t most,
                           std::vector<int32_t>& ids) {
  Word waiting[AHEAD];
  size_t found = 0, read = 0;
  for (int64_t at = begin; at < end && static_cast<int64_t>(ids.size()) < most;) {
    const int64_t start = at;
    const uint8_t kind = kind_of_next(text, at);
    if (kind == SPACE) continue;
    if (kind == IN_WORD)
      for (int64_t behind = at; at < end && kind_of_next(text, behind) == IN_WORD;) at = behind;
    if (found == read + AHEAD) append_word(waiting[read++ % AHEAD], ids);
    waiting[found++ % AHEAD] = word_at(text + start, at - start, size - start);
  }
  while (read < found) append_word(waiting[read++ % AHEAD], ids);
}

uint8_t TextReader::kind_of_next(const char* text, int64_t& at) const {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) {
    ++at;
    const uint8_t kind = tokenizer_.cells_[byte].kind;
    return kind == ELSEWHERE ? tokenizer_.run_of(byte).kind : kind;
  }
  const int32_t code = next_code(text, at);
  const uint8_t kind = code < Tokenizer::NUM_CELLS ? tokenizer_.cells_[static_cast<size_t>(code)].kind : uint8_t{ELSEWHERE};
  return kind == ELSEWHERE ? tokenizer_.run_of(code).kind : kind;
}

TextReader::Word TextReader::word_at(const char* start, int64_t bytes, int64_t readable) {
  Word word{start, bytes, {}, nullptr};
  if (bytes > WordCache::MOST_BYTES) return word;
  word.key = WordCache::key(start, bytes, readable);
  word.entry = &cache_.place(word.key);
  __builtin_prefetch(word.entry);
  return word;
}

void TextReader::append_word(const Word& word, std::vector<int32_t>& ids) {
  if (!word.entry) return append_new_word(word.start, word.bytes, ids);
  WordCache::Entry& entry = *word.entry;
  if (!(entry.key == word.key)) {
    const size_t before = ids.size();
    append_new_word(word.start, word.bytes, ids);
    const auto count = static_cast<int64_t>(ids.size() - before);
    if (count > WordCache::MOST_IDS) return;
    entry.key = word.key;
    entry.count = static_cast<int32_t>(count);
    std::copy(ids.begin() + static_cast<int64_t>(before), ids.end(), entry.ids);
    return;
  }
  ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
}

TextReader::Character TextReader::next(const char* text, int64_t& at, char (&own)[5]) const {
  const int32_t code = next_code(text, at);
  if (code < Tokenizer::NUM_CELLS) {
    const Cell& cell = tokenizer_.cells_[static_cast<size_t>(code)];
    if (cell.kind != ELSEWHERE) return {cell.kind, cell.characters, {cell.text, cell.bytes}};
  }
  const Tokenizer::Run& run = tokenizer_.run_of(code);
  if (run.is_itself) return {run.kind, 1, {own, static_cast<size_t>(write_utf8(code, own))}};
  return {run.kind, count_characters(run.text), run.text};
}

void TextReader::append_new_word(const char* word, int64_t bytes, std::vector<int32_t>& ids) {
  normal_.clear();
  int64_t characters = 0;
  char own[5];
  for (int64_t at = 0; at < bytes;) {
    const Character character = next(word, at, own);
    normal_ += character.text;
    characters += character.characters;
  }
  if (characters == 0) return;
  const size_t before = ids.size();
  std::string_view left = characters > tokenizer_.most_characters_ ? std::string_view() : normal_;
  while (!left.empty()) {  // the longest piece first, then the longest one of what is left
    const auto [length, id] = tokenizer_.tries_[ids.size() > before].longest(left);
    if (!length) break;
    ids.push_back(id);
    left.remove_prefix(length);
  }
  if (left.empty() && ids.size() > before) return;
  ids.resize(before);  // what fits nowhere is unknown as a whole
  ids.push_back(tokenizer_.unknown_);
}
