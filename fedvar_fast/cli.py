"""The command `fedvar-fast`: where it starts, and what it says when click is not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["main"]

_NO_CLICK = "error: the command line needs click: pip install 'fedvar_fast[cli]'"


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code.

    Parameters
    ----------
    args : sequence of str, optional
        The words after the command; those of the process by default.

    Raises
    ------
    SystemExit
        Always: 0 done, 1 the data or an option is wrong, 2 usage, 130 interrupted.
    """
    try:
        from fedvar_fast._cli_commands import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "click":
            raise
        print(_NO_CLICK, file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    # A terminal that cannot show a letter of a client's name gets its number instead of a traceback.
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # text files have it
    cli.main(args=None if args is None else list(args), prog_name="fedvar-fast")


if __name__ == "__main__":
    main()
