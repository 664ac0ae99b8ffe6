"""UserError: the one exception for mistakes that a user can correct."""


class UserError(ValueError):
    """Error that a user can correct: a bad option, file, line, value or checkpoint, described in one sentence.

    The sentence says what is wrong, where, and what was expected. Programs print it without a traceback."""
