"""A run or a sweep as one HTML page with pictures."""
