// The bytes of a file, mapped into memory.
#pragma once
#include "file.h"

Bytes mapped(const char* path);
