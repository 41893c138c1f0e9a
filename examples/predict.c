/* What a student answers to a text, or to two of a student of pairs, without Python:
 *
 *   cc -I student/engine examples/predict.c -o predict libdistill_student.so -Wl,-rpath,'$ORIGIN'
 *   ./predict sst2.distill "A film of great charm."
 *
 * The library is built by `python student/engine/build.py libdistill_student.so`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "distill_student.h"

static void check(distill_status status) {
  if (status == DISTILL_OK) return;
  fprintf(stderr, "%s\n", distill_last_error());
  exit(2);
}

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    fprintf(stderr, "usage: %s FILE TEXT [SECOND TEXT]\n", argv[0]);
    return 2;
  }
  distill_student* student;
  distill_info info;
  check(distill_open(argv[1], &student));
  /* Of a file with several tasks this asks the first one. */
  const int64_t task = 0;
  const distill_tasks tasks = {&task, 1};
  check(distill_describe(student, task, &info));

  const int64_t ends[2] = {(int64_t)strlen(argv[2]), argc == 4 ? (int64_t)strlen(argv[3]) : 0};
  const int64_t first_starts[] = {0, ends[0]}, second_starts[] = {0, ends[1]};
  const distill_texts first = {argv[2], first_starts, 1}, second = {argv[3], second_starts, 1};
  float* answers = malloc(sizeof(float) * (size_t)info.num_answers);
  unsigned char* chosen = malloc((size_t)info.num_answers);
  if (!answers || !chosen) return 2;
  check(distill_predict(student, &tasks, &first, argc == 4 ? &second : NULL, 1, 0, answers, chosen));

  for (int64_t n = 0; n < info.num_answers; ++n)
    printf("%s %.4f%s\n", distill_label(student, task, n), answers[n], chosen[n] ? " <" : "");
  free(chosen);
  free(answers);
  distill_close(student);
  return 0;
}
