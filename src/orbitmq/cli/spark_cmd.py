"""`orbitmq spark NAME …`: ready pipelines. Each parses its own options, the same ones as under `spark-submit`."""

from __future__ import annotations

from importlib import import_module

import typer

# The table is read without Spark: what a command is about must be known before a heavy import.
from orbitmq.spark.pipelines import PIPELINES

app = typer.Typer(
    help="Data pipelines on Spark: archive, query, analyse, replay, route.", no_args_is_help=True
)

_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _pipeline(name: str, help_text: str) -> None:
    @app.command(name, help=help_text, context_settings=_PASS_ON)
    def _(context: typer.Context) -> None:
        main = import_module(f"orbitmq.spark.pipelines.{name}").main
        raise typer.Exit(main(list(context.args)))


for _name, _help in PIPELINES.items():
    _pipeline(_name, _help)
