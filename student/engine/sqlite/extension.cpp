/* Students in SQL of SQLite, for its shell and for every program that loads extensions:
 *
 *   .load ./distill_sqlite
 *   select distill_predict('sst2.distill', text) from reviews;
 *
 * distill_predict(file, text) gives the label, of a multi-label student its labels as a JSON array, or the score.
 * distill_scores(file, text) gives the probability of each label as a JSON object, or the score. Both take a second
 * text for a student of pairs. Where a text is null the answer is null. Of a file with several tasks both give a JSON
 * object with the answer of each task that takes such inputs; every text is read once.
 *
 * `python student/engine/build.py --sqlite distill_sqlite.so` builds the extension with the engine in it.
 */
#include <sqlite3ext.h>

#include "../distill_student.h"

SQLITE_EXTENSION_INIT1

enum { FILE_ARGUMENT = 0 };

static void close_student(void* student) { distill_close(static_cast<distill_student*>(student)); }

/* The student of a call. SQLite keeps what a constant argument was made into until the statement ends, so a file is
 * opened once per statement and not once per row. */
static distill_student* student_of(sqlite3_context* context, sqlite3_value* name, int* is_owned) {
  auto* student = static_cast<distill_student*>(sqlite3_get_auxdata(context, FILE_ARGUMENT));
  *is_owned = 0;
  if (student) return student;
  const auto* path = reinterpret_cast<const char*>(sqlite3_value_text(name));
  if (!path || distill_open(path, &student) != DISTILL_OK) {
    sqlite3_result_error(context, path ? distill_last_error() : "the first argument is the file of a student", -1);
    return nullptr;
  }
  sqlite3_set_auxdata(context, FILE_ARGUMENT, student, close_student);
  /* SQLite may refuse to keep it, and has then closed it. */
  if (sqlite3_get_auxdata(context, FILE_ARGUMENT) == student) return student;
  *is_owned = 1;
  if (distill_open(path, &student) == DISTILL_OK) return student;
  sqlite3_result_error(context, distill_last_error(), -1);
  return nullptr;
}

static void append_quoted(sqlite3_str* out, const char* text) {
  sqlite3_str_appendchar(out, 1, '"');
  for (; *text; ++text) {
    const auto c = static_cast<unsigned char>(*text);
    if (c == '"' || c == '\\')
      sqlite3_str_appendf(out, "\\%c", c);
    else if (c < ' ')
      sqlite3_str_appendf(out, "\\u%04x", c);
    else
      sqlite3_str_appendchar(out, 1, *text);
  }
  sqlite3_str_appendchar(out, 1, '"');
}

static void result_json(sqlite3_context* context, sqlite3_str* out) {
  char* text = sqlite3_str_finish(out);
  if (text)
    sqlite3_result_text(context, text, -1, sqlite3_free);
  else
    sqlite3_result_error_nomem(context);
}

static void append_scores(sqlite3_str* out, const distill_student* student, int64_t task, const distill_info& info,
                          const float* answers) {
  for (int64_t n = 0; n < info.num_answers; ++n) {
    sqlite3_str_appendchar(out, 1, n ? ',' : '{');
    append_quoted(out, distill_label(student, task, n));
    sqlite3_str_appendf(out, ":%.9g", static_cast<double>(answers[n]));
  }
  sqlite3_str_appendchar(out, 1, '}');
}

static void append_labels(sqlite3_str* out, const distill_student* student, int64_t task, const distill_info& info,
                          const unsigned char* chosen) {
  int is_first = 1;
  sqlite3_str_appendchar(out, 1, '[');
  for (int64_t n = 0; n < info.num_answers; ++n) {
    if (!chosen[n]) continue;
    if (!is_first) sqlite3_str_appendchar(out, 1, ',');
    append_quoted(out, distill_label(student, task, n));
    is_first = 0;
  }
  sqlite3_str_appendchar(out, 1, ']');
}

static const char* label_of(const distill_student* student, int64_t task, const distill_info& info,
                            const unsigned char* chosen) {
  for (int64_t n = 0; n < info.num_answers; ++n)
    if (chosen[n]) return distill_label(student, task, n);
  return "";
}

/* The answer of one task as JSON. */
static void append_answer(sqlite3_str* out, const distill_student* student, int64_t task, const distill_info& info,
                          int wants_scores, const float* answers, const unsigned char* chosen) {
  if (info.kind == DISTILL_SCORE)
    sqlite3_str_appendf(out, "%.9g", static_cast<double>(answers[0]));
  else if (wants_scores)
    append_scores(out, student, task, info, answers);
  else if (info.kind == DISTILL_LABELS)
    append_labels(out, student, task, info, chosen);
  else
    append_quoted(out, label_of(student, task, info, chosen));
}

/* The answer of the only task of a file. */
static void result_of_one(sqlite3_context* context, const distill_student* student, const distill_info& info,
                          int wants_scores, const float* answers, const unsigned char* chosen) {
  if (info.kind == DISTILL_SCORE) return sqlite3_result_double(context, static_cast<double>(answers[0]));
  if (info.kind == DISTILL_CLASSES && !wants_scores)
    return sqlite3_result_text(context, label_of(student, 0, info, chosen), -1, SQLITE_TRANSIENT);
  sqlite3_str* out = sqlite3_str_new(sqlite3_context_db_handle(context));
  append_answer(out, student, 0, info, wants_scores, answers, chosen);
  result_json(context, out);
}

/* The tasks that take so many texts, and how many answers they have. All of a file with one task: it refuses others. */
static int64_t fitting(const distill_student* student, int is_pair, int64_t* numbers, int64_t* num_answers) {
  const int64_t num_tasks = distill_num_tasks(student);
  int64_t count = 0;
  *num_answers = 0;
  for (int64_t task = 0; task < num_tasks; ++task) {
    distill_info info;
    if (distill_describe(student, task, &info) != DISTILL_OK || (num_tasks > 1 && info.is_pair != is_pair)) continue;
    *num_answers += info.num_answers;
    numbers[count++] = task;
  }
  return count;
}

static void result_of_tasks(sqlite3_context* context, const distill_student* student, const distill_tasks& tasks,
                            int wants_scores, const float* answers, const unsigned char* chosen) {
  distill_info info;
  if (distill_num_tasks(student) == 1) {
    distill_describe(student, 0, &info);
    return result_of_one(context, student, info, wants_scores, answers, chosen);
  }
  sqlite3_str* out = sqlite3_str_new(sqlite3_context_db_handle(context));
  int64_t place = 0;
  for (int64_t k = 0; k < tasks.count; ++k) {
    distill_describe(student, tasks.numbers[k], &info);
    sqlite3_str_appendchar(out, 1, k ? ',' : '{');
    append_quoted(out, info.task);
    sqlite3_str_appendchar(out, 1, ':');
    append_answer(out, student, tasks.numbers[k], info, wants_scores, answers + place, chosen + place);
    place += info.num_answers;
  }
  sqlite3_str_appendchar(out, 1, '}');
  result_json(context, out);
}

static void answer(sqlite3_context* context, int num_arguments, sqlite3_value** arguments, int wants_scores) {
  const char* texts[2] = {nullptr, nullptr};
  int64_t starts[2][2] = {{0, 0}, {0, 0}};
  for (int k = 1; k < num_arguments; ++k) {
    if (sqlite3_value_type(arguments[k]) == SQLITE_NULL) return; /* the result is null until one is set */
    texts[k - 1] = reinterpret_cast<const char*>(sqlite3_value_text(arguments[k]));
    starts[k - 1][1] = sqlite3_value_bytes(arguments[k]);
    if (!texts[k - 1]) {
      sqlite3_result_error_nomem(context);
      return;
    }
  }
  int is_owned;
  distill_student* student = student_of(context, arguments[FILE_ARGUMENT], &is_owned);
  if (!student) return;
  const distill_texts first = {texts[0], starts[0], 1}, second = {texts[1], starts[1], 1};
  const auto num_tasks = static_cast<sqlite3_uint64>(distill_num_tasks(student));
  auto* numbers = static_cast<int64_t*>(sqlite3_malloc64(sizeof(int64_t) * num_tasks));
  int64_t num_answers = 0;
  const distill_tasks tasks = {numbers, numbers ? fitting(student, num_arguments == 3, numbers, &num_answers) : 0};
  const auto room = static_cast<sqlite3_uint64>(num_answers + 1); /* an allocation of nothing is null */
  auto* answers = static_cast<float*>(sqlite3_malloc64(sizeof(float) * room));
  auto* chosen = static_cast<unsigned char*>(sqlite3_malloc64(room));
  if (!numbers || !answers || !chosen)
    sqlite3_result_error_nomem(context);
  else if (!tasks.count)
    sqlite3_result_error(context, num_arguments == 3 ? "no task takes two texts" : "no task takes one text", -1);
  else if (distill_predict(student, &tasks, &first, num_arguments == 3 ? &second : nullptr, 1, answers, chosen) !=
           DISTILL_OK)
    sqlite3_result_error(context, distill_last_error(), -1);
  else
    result_of_tasks(context, student, tasks, wants_scores, answers, chosen);
  sqlite3_free(chosen);
  sqlite3_free(answers);
  sqlite3_free(numbers);
  if (is_owned) distill_close(student);
}

static void predict(sqlite3_context* context, int num_arguments, sqlite3_value** arguments) {
  answer(context, num_arguments, arguments, 0);
}

static void scores(sqlite3_context* context, int num_arguments, sqlite3_value** arguments) {
  answer(context, num_arguments, arguments, 1);
}

extern "C" DISTILL_API int sqlite3_distillsqlite_init(sqlite3* db, char** message, const sqlite3_api_routines* api) {
  static_cast<void>(message);
  SQLITE_EXTENSION_INIT2(api);
  /* A database that names a function in a view or a trigger must not make a reader open files. */
  const int flags = SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_DIRECTONLY;
  int status = SQLITE_OK;
  for (int num_arguments = 2; num_arguments <= 3 && status == SQLITE_OK; ++num_arguments) {
    status = sqlite3_create_function(db, "distill_predict", num_arguments, flags, nullptr, predict, nullptr, nullptr);
    if (status == SQLITE_OK)
      status = sqlite3_create_function(db, "distill_scores", num_arguments, flags, nullptr, scores, nullptr, nullptr);
  }
  return status;
}
