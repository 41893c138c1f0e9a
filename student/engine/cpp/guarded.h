// Calls of the C interface: no exception leaves them, and those with many inputs use several threads.
#pragma once
#include <algorithm>

#include "student.h"

#ifdef __wasm__

// There are no exceptions, see `fail`, and one thread.
template <class Work>
distill_status guarded(Work work) {
  work();
  return DISTILL_OK;
}

template <class Work>
void in_blocks(const Student& student, int64_t count, int32_t, Work work) {
  auto workspace = student.borrow();
  for (int64_t first = 0; first < count; first += Student::BLOCK)
    work(*workspace, first, std::min(first + Student::BLOCK, count));
  student.give_back(std::move(workspace));
}

#else

#include <atomic>
#include <exception>
#include <new>
#include <system_error>
#include <thread>

// Runs work that may throw.
template <class Work>
distill_status guarded(Work work) noexcept {
  try {
    work();
    return DISTILL_OK;
  } catch (const Error& error) {
    return failed(error.status, error.what());
  } catch (const std::bad_alloc&) {
    return failed(DISTILL_MEMORY, "there is no memory left");
  } catch (const std::exception& error) {
    return failed(DISTILL_INTERNAL, error.what());
  } catch (...) {
    return failed(DISTILL_INTERNAL, "something failed");
  }
}

// Calls work(workspace, first, last) for blocks of inputs, on several threads. The first error is kept.
template <class Work>
void in_blocks(const Student& student, int64_t count, int32_t threads, Work work) {
  require(threads >= 1, "threads: at least 1 is needed", DISTILL_ARGUMENT);
  std::atomic<int64_t> next{0};
  std::atomic<bool> error_taken{false};
  std::exception_ptr error;
  const auto take = [&]() noexcept {
    try {
      auto workspace = student.borrow();
      for (int64_t first; !error_taken && (first = next.fetch_add(Student::BLOCK)) < count;)
        work(*workspace, first, std::min(first + Student::BLOCK, count));
      student.give_back(std::move(workspace));
    } catch (...) {
      if (!error_taken.exchange(true)) error = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  try {
    const int64_t blocks = (count + Student::BLOCK - 1) / Student::BLOCK;
    while (static_cast<int64_t>(helpers.size()) + 1 < std::min<int64_t>(threads, blocks)) helpers.emplace_back(take);
  } catch (const std::system_error&) {  // no more threads: those that there are do the work
  } catch (const std::bad_alloc&) {
  }
  take();
  for (auto& helper : helpers) helper.join();
  if (error) std::rethrow_exception(error);
}

#endif
