"""The page on which people try a student, whoever answers: a server, or the page itself."""
