"""The two kinds of failure a person sees as one line; every other exception is a bug and keeps its traceback."""


class UserError(ValueError):
    """A mistake of the user's: names the field or file, the value and the remedy. The command exits with 2."""


class RunError(RuntimeError):
    """A run that failed (NaN, no whole checkpoint …) although it was asked for correctly. The command exits with 1."""
