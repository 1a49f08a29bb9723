"""The command line: words in, tables or JSON out, an exit code that scripts can trust.

In:   the arguments, the environment (NAMESRV_ADDR or ORBITMQ_NAMESRV), standard input for `send`.
Out:  a table for people, or with `--json` one JSON document (one object per line where results stream).
      Errors are one line on standard error, cause and fix; with `--json` an object `{"error": …, "hint": …}`.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 not found, 4 unreachable, 5 damaged.

Invariants:

* `main.py` imports nothing that a server does not need: `server`, `namesrv` and `broker` start without the
  libraries of the other commands.
* One file per noun; a noun imports the client inside its functions, so that `--help` stays quick.
* A new noun is one module with a typer app and one line in `app.py`.

Imports `client`, `config`, `server`, and `store` for offline work on directories.
"""
