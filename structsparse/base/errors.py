"""UserError: the one exception for mistakes that a user can correct."""


class UserError(ValueError):
    """A bad option, file, line, value or checkpoint, in one sentence: what, where, what was expected.

    Programs print it without a traceback."""
