/* A trained student without Python: text in, labels or scores out. The file is written by `distill export RUN --file`.
 * Students of several tasks that share an encoder are one file. They read each text once.
 *
 * Every function that can fail returns a distill_status; distill_last_error() then holds a message for this thread.
 * One student may be used by several threads at once. Its file is read into memory, and may be overwritten while it is
 * open. Texts are UTF-8, need no zero at their end, and may contain zeros.
 */
#ifndef DISTILL_STUDENT_H
#define DISTILL_STUDENT_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DISTILL_API __attribute__((visibility("default")))

typedef enum distill_status {
  DISTILL_OK = 0,
  DISTILL_FILE = 1,     /* the file cannot be read, or is not a student's */
  DISTILL_ARGUMENT = 2, /* an argument does not fit the student */
  DISTILL_TEXT = 3,     /* a text is not UTF-8 */
  DISTILL_MEMORY = 4,   /* there is no memory left */
  DISTILL_INTERNAL = 5  /* anything else */
} distill_status;

typedef enum distill_kind {
  DISTILL_CLASSES = 0, /* one label per input */
  DISTILL_LABELS = 1,  /* any number of labels per input */
  DISTILL_SCORE = 2,   /* a number per input */
  DISTILL_WORDS = 3    /* one label per word of an input */
} distill_kind;

typedef struct distill_student distill_student;

/* Texts end to end: text n is bytes[starts[n]] up to bytes[starts[n + 1]]; starts has count + 1 numbers that rise. */
typedef struct distill_texts {
  const char* bytes;
  const int64_t* starts;
  int64_t count;
} distill_texts;

/* Inputs for students that label words: the words of all inputs end to end. Input n has the words starts[n] up to
 * starts[n + 1]; starts has count + 1 numbers that rise, from 0 to the number of words. */
typedef struct distill_sentences {
  distill_texts words;
  const int64_t* starts;
  int64_t count;
} distill_sentences;

typedef struct distill_info {
  const char* task;
  distill_kind kind;
  int32_t is_pair;         /* whether an input has two texts, but for distill_encode */
  int64_t num_logits;      /* per input, or per word */
  int64_t num_answers;     /* per input or word: a probability per label, or one score */
  int64_t num_features;    /* of a text, from distill_encode */
  int64_t num_tokens;      /* the vocabulary */
  int64_t max_tokens;      /* of an input; longer ones are truncated, but all words get a label */
  int32_t has_certificate; /* whether distill_predict can abstain */
} distill_info;

DISTILL_API const char* distill_version(void);
/* The instructions in use: portable, avx2, avx512 or avx512bf16. DISTILL_LEVEL in the environment limits them. */
DISTILL_API const char* distill_level(void);
DISTILL_API const char* distill_last_error(void);

DISTILL_API distill_status distill_open(const char* path, distill_student** student);
/* A student from the bytes of its file, which begin at a multiple of 8, live until distill_close, and do not change.
 * They may be a map of the file, of which processes share one copy, if nobody overwrites the file. */
DISTILL_API distill_status distill_open_bytes(const void* bytes, int64_t size, distill_student** student);
DISTILL_API void distill_close(distill_student* student);
/* How many tasks there are. They are numbered from 0. */
DISTILL_API int64_t distill_num_tasks(const distill_student* student);
DISTILL_API distill_status distill_describe(const distill_student* student, int64_t task, distill_info* info);
/* The name of an answer of a task; NULL if there are not as many. Lives as long as the student. */
DISTILL_API const char* distill_label(const distill_student* student, int64_t task, int64_t number);

/* The token ids of one text, without special tokens and not truncated. `count` is set to how many there are, of which
 * the first `capacity` are written. */
DISTILL_API distill_status distill_tokenise(const distill_student* student, const char* text, int64_t bytes,
                                            int32_t* ids, int64_t capacity, int64_t* count);

/* Which tasks answer, by number, in this order. All of them take two texts per input, or all take one, or all label words.
 * NULL in place of this struct: all tasks of the file. */
typedef struct distill_tasks {
  const int64_t* numbers;
  int64_t count;
} distill_tasks;

/* For count inputs, row by row, in each row one task after another; `second` is NULL for single texts. `threads` is at
 * least 1. logits: count x the sum of num_logits. features: count x num_features. answers: count x the sum of num_answers,
 * probabilities or scores. chosen: as many, 1 for a label that is predicted, else 0; may be NULL. abstains: with 1, no
 * label is chosen for an input whose margin is not above that of the student's certificate (`distill certify`), the best
 * probability less the second best. DISTILL_ARGUMENT if a student has no certificate. */
DISTILL_API distill_status distill_logits(const distill_student* student, const distill_tasks* tasks,
                                          const distill_texts* first, const distill_texts* second, int32_t threads,
                                          float* logits);
DISTILL_API distill_status distill_predict(const distill_student* student, const distill_tasks* tasks,
                                           const distill_texts* first, const distill_texts* second, int32_t threads,
                                           int32_t abstains, float* answers, uint8_t* chosen);
/* The same for students that label words, with a row for each word instead of each input. A word without tokens, such as
 * one of control characters, has the label O: its logit is 0, and the others are -INFINITY. */
DISTILL_API distill_status distill_word_logits(const distill_student* student, const distill_tasks* tasks,
                                               const distill_sentences* inputs, int32_t threads, float* logits);
DISTILL_API distill_status distill_predict_words(const distill_student* student, const distill_tasks* tasks,
                                                 const distill_sentences* inputs, int32_t threads, float* answers,
                                                 uint8_t* chosen);
DISTILL_API distill_status distill_encode(const distill_student* student, const distill_texts* texts, int32_t threads,
                                          float* features);

#ifdef __cplusplus
}
#endif
#endif
