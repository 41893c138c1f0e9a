"""What sets are called in SQL."""


def view_name(set_name: str) -> str:
    """The SQL name of a set: its own, with underscores for what would need quoting."""
    return "".join(c if c.isalnum() else "_" for c in set_name.lower())


def words_view_name(set_name: str) -> str:
    """The SQL name of the view in words of a set of tokens, or by word of a set of words."""
    return f"{view_name(set_name)}_words"


def variants_view_name(set_name: str) -> str:
    """The SQL name of the view of a set's augmented rows, each beside the row it was made from."""
    return f"{view_name(set_name)}_variants"


def token_vectors_view_name(set_name: str) -> str:
    """The SQL name of the view of a set's token vectors."""
    return f"{view_name(set_name)}_token_vectors"
