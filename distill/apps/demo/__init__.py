"""``distill demo``: the whole product on a small scale, offline."""
