// Functions that Python calls through ctypes.
#pragma once
#define EXPORT extern "C" __attribute__((visibility("default")))
