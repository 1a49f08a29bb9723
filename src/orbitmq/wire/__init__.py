"""Bytes to commands to messages and back, without any input or output.

In:   raw bytes as they came from a socket or a file, or plain Python values.
Out:  `Command` objects, typed request headers and bodies, message records; or raw bytes ready to be written.

Invariants:

* No socket, no file, no clock, no randomness, no global state that changes what a function returns.
* Every length read from a peer is checked against a limit before memory is taken for it.
* Bad bytes end in a `WireError` whose text says what was wrong; no other exception escapes a decoder.
* What is written is what Java 4.9 writes, byte for byte where a reader depends on it (key order, no white
  space, omitted nulls); what is read may be looser, because clients in other languages are.
* A fast path is only ever an optimisation of a plain, tolerant path, and both are tested against each other.

Imports nothing else of ours.
"""
