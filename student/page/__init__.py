"""The page on which people try a student. A server or the page itself makes the predictions."""
