// The bytes of a file, read into memory: a map of it would change, or end the process, where another one overwrites it.
#pragma once
#include "file.h"

Bytes read_file(const char* path);
