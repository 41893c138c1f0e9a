"""A student in C++, for programs without Python or torch: see docs/engine.md."""
