"""What the client decides, without any input or output.

In:   routes, answers, offsets, times, as plain values.
Out:  queues to use, offsets to commit, delays to wait, advice.

Nothing here opens a connection, reads a clock or draws a number by itself: both are parameters, so that every
rule is tested by thousands of generated cases.
"""
