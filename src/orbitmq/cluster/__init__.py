"""Copies of the log on other machines: shipping it, receiving it, and knowing who has how much.

In: the master's store, sockets from slaves. Out: the same bytes in the slave's store, and confirmations that senders
wait for under double write. Without a controller the wire format is the one Java brokers speak to each other; with one,
slaves greet first, and a set of replicas that have everything is kept. Imports wire, store and net.
"""
