/* Students in SQL of DuckDB, for its shell and for every program that loads extensions:
 *
 *   LOAD './distill.duckdb_extension';
 *   SELECT distill_predict('sst2.distill', text) FROM reviews;
 *
 * `python student/engine/build.py --duckdb distill.duckdb_extension` builds the extension with the engine in it.
 *
 * DuckDB calls a function with some thousand rows at a time, from all of its threads.
 */
#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "answers.h"
#include "duckdb_api.h"

namespace {

using duckdb::Object;
using duckdb::Row;
using Shared = std::shared_ptr<const distill_student>;

/* The students that are open. A function has no place to keep one from one call to the next, so they are kept for all
 * queries, and opened again when the file was replaced. */
class Students {
 public:
  Shared open(const std::string& path) {
    struct stat now {};
    const bool is_there = stat(path.c_str(), &now) == 0; /* if not, opening it says why */
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto has_path = [&](const Kept& kept) { return kept.path == path; };
    auto found = std::find_if(kept_.begin(), kept_.end(), has_path);
    if (found != kept_.end() && is_there && found->is(now)) return found->student;
    if (found != kept_.end()) kept_.erase(found);
    distill_student* student;
    check(distill_open(path.c_str(), &student));
    if (kept_.size() == MOST) kept_.erase(kept_.begin());
    kept_.push_back({path, now, Shared(student, [](distill_student* last) { distill_close(last); })});
    return kept_.back().student;
  }

 private:
  static constexpr size_t MOST = 8;
  struct Kept {
    std::string path;
    struct stat then;
    Shared student;

    bool is(const struct stat& now) const {
      return then.st_dev == now.st_dev && then.st_ino == now.st_ino && then.st_size == now.st_size &&
             then.st_mtim.tv_sec == now.st_mtim.tv_sec && then.st_mtim.tv_nsec == now.st_mtim.tv_nsec;
    }
  };
  std::mutex mutex_;
  std::vector<Kept> kept_; /* the oldest first */
};

/* A column of strings. */
class Column {
 public:
  Column(Object* chunk, Row number) {
    auto* vector = duckdb::chunk_vector(chunk, number);
    strings_ = static_cast<const duckdb::String*>(duckdb::vector_data(vector));
    validity_ = duckdb::vector_validity(vector);
  }
  bool is_null(Row row) const { return validity_ && !(validity_[row / 64] >> row % 64 & 1); }
  std::string_view at(Row row) const { return {strings_[row].data(), strings_[row].length}; }

 private:
  const duckdb::String* strings_;
  const uint64_t* validity_;
};

/* Texts end to end. */
struct Texts {
  std::string bytes;
  std::vector<int64_t> starts{0};

  void add(std::string_view text) {
    bytes += text;
    starts.push_back(static_cast<int64_t>(bytes.size()));
  }
  distill_texts view() const { return {bytes.data(), starts.data(), static_cast<int64_t>(starts.size()) - 1}; }
};

/* The rows of one file, and their texts. */
struct Inputs {
  std::vector<Row> rows;
  Texts first, second;
};

void set_null(Object* output, Row row) {
  duckdb::make_validity_writable(output);
  duckdb::vector_validity(output)[row / 64] &= ~(uint64_t{1} << row % 64);
}

template <Function function, bool is_pair>
void answer(Object* info, Object* chunk, Object* output) {
  try {
    std::vector<Column> columns;
    for (Row number = 0; number < 2 + is_pair; ++number) columns.emplace_back(chunk, number);
    std::map<std::string_view, Inputs> by_file;
    for (Row row = 0; row < duckdb::chunk_size(chunk); ++row) {
      if (std::any_of(columns.begin(), columns.end(), [&](const Column& column) { return column.is_null(row); })) {
        set_null(output, row);
        continue;
      }
      auto& inputs = by_file[columns[0].at(row)];
      inputs.rows.push_back(row);
      inputs.first.add(columns[1].at(row));
      if (is_pair) inputs.second.add(columns[2].at(row));
    }
    auto& students = **static_cast<std::shared_ptr<Students>*>(duckdb::extra_info(info));
    for (const auto& [file, inputs] : by_file) {
      const auto student = students.open(std::string(file));
      const auto first = inputs.first.view(), second = inputs.second.view();
      const Answers answers(student.get(), function, first, is_pair ? &second : nullptr);
      for (size_t n = 0; n < inputs.rows.size(); ++n) {
        const auto text = answers.text(static_cast<int64_t>(n));
        duckdb::assign_string(output, inputs.rows[n], text.data(), text.size());
      }
    }
  } catch (const std::exception& error) {
    duckdb::set_error(info, error.what());
  }
}

/* A function of a file and one or two texts. */
void add(Object* set, Object* varchar, const char* name, Row num_texts, duckdb::Call call,
         const std::shared_ptr<Students>& students) {
  auto* function = duckdb::create_function();
  duckdb::set_name(function, name);
  for (Row number = 0; number < 1 + num_texts; ++number) duckdb::add_parameter(function, varchar);
  duckdb::set_return_type(function, varchar);
  duckdb::set_extra_info(function, new std::shared_ptr<Students>(students),
                         [](void* last) { delete static_cast<std::shared_ptr<Students>*>(last); });
  duckdb::set_function(function, call);
  duckdb::add_to_set(set, function); /* fails only without a function */
  duckdb::destroy_function(&function);
}

template <Function kind>
bool register_function(Object* connection, Object* varchar, const char* name,
                       const std::shared_ptr<Students>& students) {
  auto* set = duckdb::create_function_set(name);
  add(set, varchar, name, 1, answer<kind, false>, students);
  add(set, varchar, name, 2, answer<kind, true>, students);
  const bool is_registered = duckdb::register_set(connection, set) == duckdb::SUCCESS;
  duckdb::destroy_function_set(&set);
  return is_registered;
}

bool register_all(Object* connection) {
  const auto students = std::make_shared<Students>();
  auto* varchar = duckdb::create_logical_type(duckdb::VARCHAR);
  const bool is_done =
      register_function<Function::PREDICT>(connection, varchar, "distill_predict", students) &&
      register_function<Function::PREDICT_OR_ABSTAIN>(connection, varchar, "distill_predict_or_abstain", students) &&
      register_function<Function::SCORES>(connection, varchar, "distill_scores", students);
  duckdb::destroy_logical_type(&varchar);
  return is_done;
}

}  // namespace

/* DuckDB makes the name of this function from that of the file. */
extern "C" DISTILL_API bool distill_init_c_api(Object* info, const duckdb::Access* access) {
  try {
    const auto* functions = access->functions(info, "v1.2.0");
    if (!functions) return false; /* DuckDB has set the error */
    std::copy_n(functions, std::size(duckdb::table), duckdb::table);
    Object* connection;
    if (duckdb::connect(*access->database(info), &connection) != duckdb::SUCCESS) {
      access->set_error(info, "distill: no connection to the database");
      return false;
    }
    const bool is_done = register_all(connection);
    duckdb::disconnect(&connection);
    if (!is_done) access->set_error(info, "distill: the database has functions of these names");
    return is_done;
  } catch (const std::exception& error) {
    access->set_error(info, error.what());
    return false;
  }
}
