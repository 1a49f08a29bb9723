"""The typer application: every noun's commands in one tree, and errors turned into lines and exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orbitmq import __version__
from orbitmq.cli import (
    cheat,
    cluster,
    controller_cmd,
    dead,
    doctor_cmd,
    group,
    message,
    run_cmd,
    schedule,
    send,
    spark_cmd,
    store,
    topic,
)
from orbitmq.cli.output import EXIT_CODES_HELP, CommandError, ExitCode, OutputClosed, print_error

app = typer.Typer(
    name="orbitmq",
    help="OrbitMQ: a message queue compatible with Apache RocketMQ.",
    epilog=EXIT_CODES_HELP + " Name servers come from -n, NAMESRV_ADDR or ORBITMQ_NAMESRV.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SERVERS, CLUSTER, MESSAGES, STORE = "Servers", "A running cluster", "Messages", "Help and files"

# The servers' own options are parsed by `server_cmd`, without typer; here they are only found in the help.
_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _server_command(name: str, help_text: str) -> None:
    @app.command(name, help=help_text, context_settings=_PASS_ON, rich_help_panel=SERVERS)
    def _(context: typer.Context) -> None:
        from orbitmq.cli.server_cmd import run_command

        raise typer.Exit(run_command(name, list(context.args)))


_server_command("server", "Start name server and broker in one process.")
_server_command("namesrv", "Start a name server.")
_server_command("broker", "Start a broker.")
app.add_typer(controller_cmd.app, name="controller", rich_help_panel=SERVERS)

app.add_typer(topic.app, name="topic", rich_help_panel=CLUSTER)
app.add_typer(group.app, name="group", rich_help_panel=CLUSTER)
app.add_typer(cluster.app, name="cluster", rich_help_panel=CLUSTER)
app.add_typer(message.app, name="message", rich_help_panel=MESSAGES)
app.add_typer(dead.app, name="dead", rich_help_panel=MESSAGES)
app.add_typer(schedule.app, name="schedule", rich_help_panel=MESSAGES)
app.command("send", rich_help_panel=MESSAGES)(send.send)
app.command("tail", rich_help_panel=MESSAGES)(send.tail)
app.command("run", rich_help_panel=MESSAGES)(run_cmd.run)
app.add_typer(store.app, name="store", rich_help_panel=STORE)
app.add_typer(spark_cmd.app, name="spark", rich_help_panel=STORE)
app.add_typer(doctor_cmd.app, name="doctor", rich_help_panel=STORE)
app.command("cheat", rich_help_panel=STORE)(cheat.cheat)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"orbitmq {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The options that come before any command."""


def run_app(args: list[str]) -> int:
    """Runs one command and maps how it ended to an exit code."""
    as_json = "--json" in args[: args.index("--") if "--" in args else len(args)]
    try:
        result = app(args=args, prog_name="orbitmq", standalone_mode=False)
    except CommandError as error:
        print_error(str(error), error.hint, as_json=as_json, exit_code=error.exit_code)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except OutputClosed:
        return ExitCode.FAILED
    except typer.Abort:
        print_error("aborted", "", as_json=as_json, exit_code=ExitCode.FAILED)
        return ExitCode.FAILED
    except Exception as error:
        return _report(error, as_json)
    return result if isinstance(result, int) else ExitCode.OK


def _report(error: Exception, as_json: bool) -> int:
    """Errors of the client and of the argument parser; anything else is a defect and keeps its traceback."""
    from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Unreachable

    if isinstance(error, OrbitMQError):
        exit_code = ExitCode.FAILED
        for kind, code in (
            (Unreachable, ExitCode.UNREACHABLE),
            (NotFound, ExitCode.NOT_FOUND),
            (BadRequest, ExitCode.USAGE),
        ):
            if isinstance(error, kind):
                exit_code = code
        print_error(str(error), error.hint, as_json=as_json, exit_code=exit_code, code=error.code)
        return exit_code
    # The parser's error classes moved between typer releases; what they have in common is this method.
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        raise error
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(context.get_help() + "\n" if context else format_message() + "\n")
        return ExitCode.USAGE
    hint = f"try `{context.command_path} --help`" if context else "try `orbitmq --help`"
    print_error(format_message(), hint, as_json=as_json, exit_code=ExitCode.USAGE)
    return ExitCode.USAGE
