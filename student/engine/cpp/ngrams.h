// A linear model on n-grams, whose logits are added to those of a head. See student/model/ngrams.py.
#pragma once
#include <string>
#include <vector>

#include "file.h"

class Ngrams {
 public:
  struct Workspace {
    std::string spelled;
    std::vector<uint32_t> found;  // rows of a text, and their weights; after `find`, each row once
    std::vector<uint8_t> marks;   // of each row: the weight of its n-gram in the first text, and in the second
    std::vector<int32_t> sums;
  };

  Ngrams(const File& file, const std::string& prefix, int64_t num_tokens, int64_t num_logits, bool is_pair);
  // Of a text, or of two. `work` is as this function left it.
  void add(Workspace& work, const std::vector<int32_t>* texts, float* logits) const;

 private:
  void find(Workspace& work, const std::vector<int32_t>& ids, int shift) const;

  int64_t num_logits_, num_rows_ = 0, groups_;
  int hash_shift_ = 0;
  const char* spelling_;
  const int32_t* starts_;
  const int8_t* weights_;  // [group][row][logit]: in the first text alone, in the second alone, in both
  const float *scale_, *overlap_, *bias_;
};
