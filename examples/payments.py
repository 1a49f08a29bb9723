"""Every payment is sent twice, and every account is charged once.

The handler's statements and the note that the message was handled are one database transaction. So it does not
matter how often a message arrives: because it was sent again, because a consumer died, because its queue moved.

Run it with `make up` in another terminal: python examples/payments.py
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

import orbitmq

FOLDER = tempfile.TemporaryDirectory(prefix="orbitmq-payments-")
DATABASE = Path(FOLDER.name) / "bank.db"


@dataclass
class Payment:
    id: str
    account: str
    cents: int


app = orbitmq.App()
handled = asyncio.Semaphore(0)


@app.on("payments", group="bank", dedup=orbitmq.Dedup.sqlite(DATABASE))
async def pay(msg: orbitmq.Message) -> None:
    payment = msg.json(Payment)
    await msg.transaction.execute(
        "UPDATE accounts SET cents = cents - ? WHERE name = ?", (payment.cents, payment.account)
    )
    print(f"{payment.account} pays {payment.cents / 100:.2f} for {payment.id}")
    handled.release()


async def main() -> None:
    with closing(sqlite3.connect(DATABASE)) as bank, bank:
        bank.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, cents INTEGER)")
        bank.executemany("INSERT INTO accounts VALUES (?, ?)", [("ada", 10_000), ("bob", 10_000)])

    payments = [Payment("lamp", "ada", 4_900), Payment("chair", "bob", 2_900), Payment("book", "ada", 1_100)]
    async with app:
        for payment in payments * 2:  # the customer clicked twice
            await app.producer().send("payments", msgspec.json.encode(payment), keys=[payment.id])
        for _ in payments:
            await handled.acquire()

    with closing(sqlite3.connect(DATABASE)) as bank:
        for name, cents in bank.execute("SELECT name, cents FROM accounts ORDER BY name"):
            print(f"{name} has {cents / 100:.2f}")
    FOLDER.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
