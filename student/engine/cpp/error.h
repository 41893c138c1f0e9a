// Errors inside the engine. They leave the C interface as a status and a message.
#pragma once
#include <string>

#include "../distill_student.h"

#ifndef __wasm__
#include <stdexcept>

struct Error : std::runtime_error {
  Error(distill_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  distill_status status;
};
#endif

// Throws an Error. WebAssembly is compiled without exceptions: there it stores the message and ends the instance.
[[noreturn]] void fail(distill_status status, const std::string& message);

// Stores the message of `distill_last_error`, and returns the status.
distill_status failed(distill_status status, const char* message);

inline void require(bool holds, const std::string& message, distill_status status = DISTILL_FILE) {
  if (!holds) fail(status, message);
}
