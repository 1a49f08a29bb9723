"""Handlers say by annotation what they want of a message, and get it decoded.

async def bill(msg: Message): ...                  # the message itself, also without annotation
async def bill(order: Order): ...                  # its body: dataclass, msgspec.Struct, TypedDict, pydantic
async def bill(order: Order, msg: Message): ...    # both
async def bill(text: str): ...                     # UTF-8; bytes is the body as it is; all else is JSON
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final, get_type_hints

import msgspec

from orbitmq.client.errors import BadRequest, OrbitMQError
from orbitmq.client.message import Message

Decode = Callable[[bytes], Any]
Arguments = Callable[[Message], tuple[Any, ...]]

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Undecodable(OrbitMQError):
    """A body is not what the handler's annotation says; trying again cannot help."""


def arguments_of(handler: Callable[..., Any]) -> Arguments:
    """What to call the handler with, decided once by its signature."""
    name = getattr(handler, "__qualname__", repr(handler))
    takers = [_taker(kind, name) for kind in _wanted(handler, name)]
    bodies = sum(not _is_message(kind) for kind in _wanted(handler, name))
    if not takers or bodies > 1 or len(takers) - bodies > 1:
        raise BadRequest(
            f"handler {name} takes {len(takers)} arguments of a message",
            hint="give it the message, the decoded body, or one of each: `handle(order: Order, msg: Message)`",
        )
    if len(takers) == 1:
        only = takers[0]
        return lambda msg: (only(msg),)
    first, second = takers
    return lambda msg: (first(msg), second(msg))


def plain_function(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a partial or a callable object, where annotations and `async` are found."""
    while isinstance(handler, partial):
        handler = handler.func
    return handler if inspect.isroutine(handler) else type(handler).__call__


def decoder_for(kind: Any) -> Decode:
    """How a body becomes a value of this type; BadRequest when it never can."""
    if kind in (bytes, Any):
        return bytes
    if kind is str:
        return bytes.decode
    if kind in (bytearray, memoryview):
        made: Decode = kind
        return made
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        checked: Decode = validate
        return checked
    try:
        # Classes that are neither data nor JSON are taken here and would only fail message by message.
        known = not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
        decode = msgspec.json.Decoder(kind).decode
    except TypeError as error:
        raise _never(kind, str(error)) from error
    if not known:
        raise _never(kind, "it is no kind of data")
    return decode


def _never(kind: Any, why: str) -> BadRequest:
    return BadRequest(
        f"bodies cannot be decoded to {kind!r}: {why}",
        hint="annotate with bytes, str, dict, a dataclass, a msgspec.Struct, a TypedDict or a pydantic model",
    )


def _wanted(handler: Callable[..., Any], name: str) -> list[Any]:
    """The annotations of the parameters without a default; those without annotation get the message."""
    try:
        parameters = inspect.signature(handler).parameters.values()
        hints = get_type_hints(plain_function(handler))
    except (NameError, TypeError, ValueError) as error:
        raise BadRequest(
            f"the annotations of handler {name} cannot be read: {error}",
            hint="use types that are defined at the top of the module",
        ) from error
    return [
        hints.get(parameter.name, Message)
        for parameter in parameters
        if parameter.kind in _POSITIONAL and parameter.default is inspect.Parameter.empty
    ]


def _is_message(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message)


def _taker(kind: Any, name: str) -> Callable[[Message], Any]:
    if _is_message(kind):
        return lambda msg: msg
    decode = decoder_for(kind)

    def take(msg: Message) -> Any:
        body = msg.body
        try:
            return decode(body)
        except ValueError as error:  # msgspec's, pydantic's and UTF-8's errors are all of this kind
            shown = getattr(kind, "__name__", repr(kind))
            raise Undecodable(
                f"{msg!r} is not a {shown}, as handler {name} expects: {' '.join(str(error).split())}",
                hint="correct the producer, or let the handler take bytes",
            ) from error

    return take
