// Errors inside the engine; engine.cpp turns them into a status and a message.
#pragma once
#include <stdexcept>
#include <string>

#include "../distill_student.h"

struct Error : std::runtime_error {
  Error(distill_status status, const std::string& message) : std::runtime_error(message), status(status) {}
  distill_status status;
};

inline void require(bool holds, const std::string& message, distill_status status = DISTILL_FILE) {
  if (!holds) throw Error(status, message);
}
