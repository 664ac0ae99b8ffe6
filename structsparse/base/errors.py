"""The one exception for what a user can mend: a bad option, file, line, value or checkpoint."""


class UserError(ValueError):
    """One clear sentence: what, where, what was expected. Shown without a traceback by the programs."""
