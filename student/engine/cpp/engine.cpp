// The C interface, see distill_student.h.
#include "guarded.h"
#ifndef __wasm__
#include "read.h"
#endif

struct distill_student {
  explicit distill_student(Bytes bytes) : student(std::move(bytes)) {}
  Student student;
};

namespace {

void require_argument(bool holds, const char* message) { require(holds, message, DISTILL_ARGUMENT); }

void check(const distill_texts* texts) {
  require_argument(texts && texts->starts && texts->count >= 0, "texts: there are none");
  require_argument(texts->starts[0] >= 0, "texts: starts begin below 0");
  require_argument(texts->bytes || texts->starts[texts->count] == 0, "texts: there are no bytes");
  for (int64_t n = 0; n < texts->count; ++n)
    require_argument(texts->starts[n] <= texts->starts[n + 1], "texts: starts do not rise");
}

const Head& head_of(const distill_student* handle, int64_t task) {
  const auto& heads = handle->student.heads;
  require_argument(task >= 0 && task < static_cast<int64_t>(heads.size()), "task: there is none of this number");
  return heads[static_cast<size_t>(task)];
}

// The heads of the tasks that are to answer.
Heads heads_of(const distill_student* handle, const distill_tasks* tasks) {
  Heads heads;
  if (!tasks)
    for (const Head& head : handle->student.heads) heads.push_back(&head);
  else {
    require_argument(tasks->numbers && tasks->count > 0 && tasks->count <= 1 << 16, "tasks: there are none, or too many");
    for (int64_t n = 0; n < tasks->count; ++n) heads.push_back(&head_of(handle, tasks->numbers[n]));
  }
  for (const Head* head : heads) {
    require_argument(head->is_pair == heads[0]->is_pair, "tasks: some take one text per input and others two; choose");
    require_argument(head->labels_words() == heads[0]->labels_words(), "tasks: some take words and others texts; choose");
  }
  return heads;
}

// The inputs of a call: texts, pairs of texts, or sentences of words.
struct Inputs {
  const distill_texts* first = nullptr;
  const distill_texts* second = nullptr;
  const distill_sentences* sentences = nullptr;

  int64_t count() const { return sentences ? sentences->count : first->count; }
  // How many rows of logits precede those of an input.
  int64_t row(int64_t n) const { return sentences ? sentences->starts[n] : n; }
};

void check_texts(const Heads& heads, const Inputs& inputs) {
  require_argument(!heads[0]->labels_words(), "this student labels words, and takes lists of words");
  check(inputs.first);
  require_argument(heads[0]->is_pair == (inputs.second != nullptr),
                   heads[0]->is_pair ? "this student takes two texts per input" : "this student takes one text per input");
  if (!inputs.second) return;
  check(inputs.second);
  require_argument(inputs.first->count == inputs.second->count, "there are not as many second texts as first ones");
}

void require_certificates(const Heads& heads) {
  for (const Head* head : heads)
    require(head->certified, "the student of " + head->task + " has no certificate: run distill certify, and export it",
            DISTILL_ARGUMENT);
}

void check_sentences(const Heads& heads, const distill_sentences& inputs) {
  require_argument(heads[0]->labels_words(), "this student takes texts, and no lists of words");
  check(&inputs.words);
  require_argument(inputs.starts && inputs.count >= 0, "inputs: there are none");
  for (int64_t n = 0; n < inputs.count; ++n)
    require_argument(inputs.starts[n] <= inputs.starts[n + 1], "inputs: starts do not rise");
  require_argument(inputs.starts[0] == 0 && inputs.starts[inputs.count] == inputs.words.count,
                   "inputs: their words are not all words");
}

void check_inputs(const Heads& heads, const Inputs& inputs) {
  if (inputs.sentences) check_sentences(heads, *inputs.sentences);
  else check_texts(heads, inputs);
}

void block_logits(const Student& student, const Heads& heads, Workspace& work, const Inputs& inputs, int64_t begin,
                  int64_t end, float* out) {
  if (inputs.sentences) return student.word_logits(work, heads, *inputs.sentences, begin, end, out);
  const auto text = [&](int side, int64_t n) { return text_of(side ? *inputs.second : *inputs.first, begin + n); };
  student.logits(work, heads, end - begin, text, out);
}

int64_t num_logits(const Heads& heads) {
  int64_t count = 0;
  for (const Head* head : heads) count += head->num_logits;
  return count;
}

int64_t num_answers(const Heads& heads) {
  int64_t count = 0;
  for (const Head* head : heads) count += head->num_answers();
  return count;
}

distill_status write_logits(const distill_student* handle, const distill_tasks* tasks, const Inputs& inputs,
                            int32_t threads, float* logits) {
  return guarded([&] {
    require_argument(handle && logits, "student and logits must be given");
    const Heads heads = heads_of(handle, tasks);
    check_inputs(heads, inputs);
    const int64_t width = num_logits(heads);
    in_blocks(handle->student, inputs.count(), threads, [&](Workspace& work, int64_t begin, int64_t end) {
      block_logits(handle->student, heads, work, inputs, begin, end, logits + inputs.row(begin) * width);
    });
  });
}

distill_status write_answers(const distill_student* handle, const distill_tasks* tasks, const Inputs& inputs,
                             int32_t threads, bool abstains, float* answers, uint8_t* chosen) {
  return guarded([&] {
    require_argument(handle && answers, "student and answers must be given");
    const Heads heads = heads_of(handle, tasks);
    check_inputs(heads, inputs);
    if (abstains) require_certificates(heads);
    const int64_t width = num_logits(heads), answer_width = num_answers(heads);
    in_blocks(handle->student, inputs.count(), threads, [&](Workspace& work, int64_t begin, int64_t end) {
      const int64_t first = inputs.row(begin), behind = inputs.row(end);
      std::vector<float> logits(static_cast<size_t>((behind - first) * width));
      block_logits(handle->student, heads, work, inputs, begin, end, logits.data());
      const float* read = logits.data();
      int64_t place = first * answer_width;
      for (int64_t row = first; row < behind; ++row)
        for (const Head* head : heads) {
          head->answer(read, abstains, answers + place, chosen ? chosen + place : nullptr);
          read += head->num_logits;
          place += head->num_answers();
        }
    });
  });
}

}  // namespace

const char* distill_version(void) { return "0.1.0"; }
const char* distill_level(void) { return kernels().name; }

#ifndef __wasm__  // which has no file system
distill_status distill_open(const char* path, distill_student** student) {
  return guarded([&] {
    require_argument(path && student, "path and student must be given");
    *student = nullptr;
    try {
      *student = new distill_student(read_file(path));
    } catch (const Error& error) {
      fail(error.status, std::string(path) + ": " + error.what());
    }
  });
}
#endif

distill_status distill_open_bytes(const void* bytes, int64_t size, distill_student** student) {
  return guarded([&] {
    require_argument(bytes && size >= 0 && student, "bytes and student must be given");
    *student = nullptr;
    // Without an owner: the bytes are the caller's.
    const std::shared_ptr<const unsigned char> data(std::shared_ptr<void>(), static_cast<const unsigned char*>(bytes));
    *student = new distill_student({data, size});
  });
}

void distill_close(distill_student* student) { delete student; }

int64_t distill_num_tasks(const distill_student* handle) {
  return handle ? static_cast<int64_t>(handle->student.heads.size()) : 0;
}

distill_status distill_describe(const distill_student* handle, int64_t task, distill_info* info) {
  return guarded([&] {
    require_argument(handle && info, "student and info must be given");
    const Student& student = handle->student;
    const Head& head = head_of(handle, task);
    *info = {head.task.c_str(),  head.kind,          head.is_pair,       head.num_logits,
             head.num_answers(), student.features_of_text(), student.num_tokens, student.max_tokens,
             head.certified != nullptr};
  });
}

const char* distill_label(const distill_student* handle, int64_t task, int64_t number) {
  if (!handle || task < 0 || task >= distill_num_tasks(handle)) return nullptr;
  const Head& head = head_of(handle, task);
  if (number < 0 || number >= head.num_answers()) return nullptr;
  return head.kind == DISTILL_SCORE ? "score" : head.labels[static_cast<size_t>(number)].c_str();
}

distill_status distill_tokenise(const distill_student* handle, const char* text, int64_t bytes, int32_t* ids,
                                int64_t capacity, int64_t* count) {
  return guarded([&] {
    require_argument(handle && count && bytes >= 0 && (text || !bytes), "student, text and count must be given");
    require_argument(capacity >= 0 && (ids || !capacity), "ids must have room");
    const std::string_view view(text ? text : "", static_cast<size_t>(bytes));
    require(is_utf8(view), "a text is not UTF-8", DISTILL_TEXT);
    auto work = handle->student.borrow();
    auto& found = work->ids[0];
    found.clear();
    work->reader.read(view, INT64_MAX, found);
    *count = static_cast<int64_t>(found.size());
    std::copy_n(found.begin(), std::min(capacity, *count), ids);
    handle->student.give_back(std::move(work));
  });
}

distill_status distill_logits(const distill_student* student, const distill_tasks* tasks, const distill_texts* first,
                              const distill_texts* second, int32_t threads, float* logits) {
  return write_logits(student, tasks, {first, second}, threads, logits);
}

distill_status distill_predict(const distill_student* student, const distill_tasks* tasks, const distill_texts* first,
                               const distill_texts* second, int32_t threads, int32_t abstains, float* answers,
                               uint8_t* chosen) {
  return write_answers(student, tasks, {first, second}, threads, abstains, answers, chosen);
}

distill_status distill_word_logits(const distill_student* student, const distill_tasks* tasks,
                                   const distill_sentences* inputs, int32_t threads, float* logits) {
  return write_logits(student, tasks, {nullptr, nullptr, inputs}, threads, logits);
}

distill_status distill_predict_words(const distill_student* student, const distill_tasks* tasks,
                                     const distill_sentences* inputs, int32_t threads, float* answers,
                                     uint8_t* chosen) {
  return write_answers(student, tasks, {nullptr, nullptr, inputs}, threads, false, answers, chosen);
}

distill_status distill_encode(const distill_student* handle, const distill_texts* texts, int32_t threads,
                              float* features) {
  return guarded([&] {
    require_argument(handle && features, "student and features must be given");
    const Student& student = handle->student;
    check(texts);
    in_blocks(student, texts->count, threads, [&](Workspace& work, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n)
        student.encode(work, text_of(*texts, n), features + n * student.features_of_text());
    });
  });
}
