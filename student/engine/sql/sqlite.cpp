/* Students in SQL of SQLite, for its shell and for every program that loads extensions:
 *
 *   .load ./distill_sqlite
 *   select distill_predict('sst2.distill', text) from reviews;
 *
 * `python student/engine/build.py --sqlite distill_sqlite.so` builds the extension with the engine in it.
 */
#include <sqlite3ext.h>

#include <memory>
#include <new>

#include "answers.h"

SQLITE_EXTENSION_INIT1

namespace {

enum { FILE_ARGUMENT = 0 };

struct Close {
  void operator()(distill_student* student) const { distill_close(student); }
};
using Owned = std::unique_ptr<distill_student, Close>;

void close_student(void* student) { distill_close(static_cast<distill_student*>(student)); }

distill_student* opened(const char* path) {
  distill_student* student;
  check(distill_open(path, &student));
  return student;
}

/* The student of a call. SQLite keeps what a constant argument was made into until the statement ends, so a file is
 * opened once per statement and not once per row. `owned` gets the student that it did not keep. */
distill_student* student_of(sqlite3_context* context, sqlite3_value* name, Owned& owned) {
  if (auto* kept = static_cast<distill_student*>(sqlite3_get_auxdata(context, FILE_ARGUMENT))) return kept;
  const auto* path = reinterpret_cast<const char*>(sqlite3_value_text(name));
  if (!path) throw std::runtime_error("the first argument is the file of a student");
  auto* student = opened(path);
  sqlite3_set_auxdata(context, FILE_ARGUMENT, student, close_student);
  /* SQLite may refuse to keep it, and has then closed it. */
  if (sqlite3_get_auxdata(context, FILE_ARGUMENT) == student) return student;
  owned.reset(opened(path));
  return owned.get();
}

template <Function function>
void answer(sqlite3_context* context, int num_arguments, sqlite3_value** arguments) {
  try {
    const char* texts[2] = {nullptr, nullptr};
    int64_t starts[2][2] = {{0, 0}, {0, 0}};
    for (int k = 1; k < num_arguments; ++k) {
      if (sqlite3_value_type(arguments[k]) == SQLITE_NULL) return; /* the result is null until one is set */
      texts[k - 1] = reinterpret_cast<const char*>(sqlite3_value_text(arguments[k]));
      starts[k - 1][1] = sqlite3_value_bytes(arguments[k]);
      if (!texts[k - 1]) throw std::bad_alloc();
    }
    Owned owned;
    const auto* student = student_of(context, arguments[FILE_ARGUMENT], owned);
    const distill_texts first = {texts[0], starts[0], 1}, second = {texts[1], starts[1], 1};
    const Answers answers(student, function, first, num_arguments == 3 ? &second : nullptr);
    if (const auto score = answers.score(0)) return sqlite3_result_double(context, static_cast<double>(*score));
    const auto text = answers.text(0);
    sqlite3_result_text(context, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
  } catch (const std::bad_alloc&) {
    sqlite3_result_error_nomem(context);
  } catch (const std::exception& error) {
    sqlite3_result_error(context, error.what(), -1);
  }
}

}  // namespace

extern "C" DISTILL_API int sqlite3_distillsqlite_init(sqlite3* db, char** message, const sqlite3_api_routines* api) {
  static_cast<void>(message);
  SQLITE_EXTENSION_INIT2(api);
  /* A database that names a function in a view or a trigger must not make a reader open files. */
  const int flags = SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_DIRECTONLY;
  const auto create = [&](const char* name, int num_arguments, auto* function) {
    return sqlite3_create_function(db, name, num_arguments, flags, nullptr, function, nullptr, nullptr);
  };
  int status = SQLITE_OK;
  for (int num_arguments = 2; num_arguments <= 3; ++num_arguments) {
    if (status == SQLITE_OK) status = create("distill_predict", num_arguments, answer<Function::PREDICT>);
    if (status == SQLITE_OK)
      status = create("distill_predict_or_abstain", num_arguments, answer<Function::PREDICT_OR_ABSTAIN>);
    if (status == SQLITE_OK) status = create("distill_scores", num_arguments, answer<Function::SCORES>);
  }
  return status;
}
