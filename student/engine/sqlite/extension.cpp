/* Students in SQL of SQLite, for its shell and for every program that loads extensions:
 *
 *   .load ./distill_sqlite
 *   select distill_predict('sst2.distill', text) from reviews;
 *
 * distill_predict(file, text) gives the label, of a multi-label student its labels as a JSON array, or the score.
 * distill_scores(file, text) gives the probability of each label as a JSON object, or the score. Both take a second
 * text for a student of pairs. Where a text is null the answer is null.
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

static void result_scores(sqlite3_context* context, const distill_student* student, int64_t count, const float* answers) {
  sqlite3_str* out = sqlite3_str_new(sqlite3_context_db_handle(context));
  for (int64_t n = 0; n < count; ++n) {
    sqlite3_str_appendchar(out, 1, n ? ',' : '{');
    append_quoted(out, distill_label(student, n));
    sqlite3_str_appendf(out, ":%.9g", static_cast<double>(answers[n]));
  }
  sqlite3_str_appendchar(out, 1, '}');
  result_json(context, out);
}

static void result_labels(sqlite3_context* context, const distill_student* student, int64_t count,
                          const unsigned char* chosen) {
  sqlite3_str* out = sqlite3_str_new(sqlite3_context_db_handle(context));
  int is_first = 1;
  sqlite3_str_appendchar(out, 1, '[');
  for (int64_t n = 0; n < count; ++n) {
    if (!chosen[n]) continue;
    if (!is_first) sqlite3_str_appendchar(out, 1, ',');
    append_quoted(out, distill_label(student, n));
    is_first = 0;
  }
  sqlite3_str_appendchar(out, 1, ']');
  result_json(context, out);
}

static void result_label(sqlite3_context* context, const distill_student* student, int64_t count,
                         const unsigned char* chosen) {
  for (int64_t n = 0; n < count; ++n)
    if (chosen[n]) {
      sqlite3_result_text(context, distill_label(student, n), -1, SQLITE_TRANSIENT);
      return;
    }
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
  distill_info info;
  distill_status status = distill_describe(student, &info);
  const auto count = static_cast<sqlite3_uint64>(info.num_answers);
  auto* answers = static_cast<float*>(sqlite3_malloc64(sizeof(float) * count));
  auto* chosen = static_cast<unsigned char*>(sqlite3_malloc64(count));
  if (!answers || !chosen) {
    sqlite3_result_error_nomem(context);
  } else {
    if (status == DISTILL_OK)
      status = distill_predict(student, &first, num_arguments == 3 ? &second : nullptr, 1, answers, chosen);
    if (status != DISTILL_OK)
      sqlite3_result_error(context, distill_last_error(), -1);
    else if (info.kind == DISTILL_SCORE)
      sqlite3_result_double(context, static_cast<double>(answers[0]));
    else if (wants_scores)
      result_scores(context, student, info.num_answers, answers);
    else if (info.kind == DISTILL_LABELS)
      result_labels(context, student, info.num_answers, chosen);
    else
      result_label(context, student, info.num_answers, chosen);
  }
  sqlite3_free(chosen);
  sqlite3_free(answers);
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
