"""Benchmarks the throughput of students and their peers on this machine."""
