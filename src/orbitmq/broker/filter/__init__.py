"""Filters on message properties: SQL92 conditions from text to a function over stored records.

In:   subscription expressions as clients write them; records as they lie in the log.
Out:  `compile_sql(text)`, a predicate over records, or `FilterSyntaxError` that names the place and the
      cause; the `Filters` room, which plugs it into pulls and keeps `consumerFilter.json`.

The flow is lexer → parser → compiler, with the shapes between them in `syntax`. Meaning is that of the Java
broker, odd corners included (three-valued logic, a property read as the type of the number it is compared
with, an error anywhere makes the message not match), since a group may move between brokers. On purpose
more strict: text behind a complete condition, conditions compared with numbers or texts and negated
properties are refused, where Java accepts them and then never does what was meant. On purpose more: LIKE
with ESCAPE, and CONTAINS, STARTSWITH, ENDSWITH as in 5.x.

Invariants: nothing recurses deeper than `MAX_DEPTH`; work per record is linear in its properties; no
pattern backtracks.
May import `wire`, `net`, `store`, `config` and the broker's tables.
"""

from __future__ import annotations

from orbitmq.broker.filter.compiler import compile_sql
from orbitmq.broker.filter.syntax import FilterSyntaxError

__all__ = ["FilterSyntaxError", "compile_sql"]
