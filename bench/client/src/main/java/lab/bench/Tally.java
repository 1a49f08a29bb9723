package lab.bench;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.message.MessageExt;

/** Numbered messages, and which of them came: each counts once, so that a copy cannot stand in for a lost one. */
final class Tally {
    private static final long MARK = 0x6e756d6265726564L;
    private final long from;
    private final AtomicIntegerArray seen;
    private final AtomicLong came = new AtomicLong();
    private final AtomicLong again = new AtomicLong();
    private final CountDownLatch done = new CountDownLatch(1);
    private volatile long expected = Long.MAX_VALUE;

    /** For the numbers from..from + capacity - 1. */
    Tally(long from, int capacity) {
        this.from = from;
        seen = new AtomicIntegerArray(capacity);
    }

    /** The pattern with a number in front. */
    static byte[] body(byte[] pattern, long number) {
        byte[] b = Arrays.copyOf(pattern, Math.max(pattern.length, 16));
        ByteBuffer.wrap(b).putLong(MARK).putLong(number);
        return b;
    }

    /** The message's place among the numbers of this tally; -1 if it has no such number. */
    int place(MessageExt m) {
        ByteBuffer b = ByteBuffer.wrap(m.getBody());
        if (b.remaining() < 16 || b.getLong() != MARK) {
            return -1;
        }
        long place = b.getLong() - from;
        return place >= 0 && place < seen.length() ? (int) place : -1;
    }

    /** True when the message at this place comes for the first time. */
    boolean add(int place) {
        if (seen.getAndSet(place, 1) != 0) {
            again.incrementAndGet();
            return false;
        }
        if (came.incrementAndGet() >= expected) {
            done.countDown();
        }
        return true;
    }

    void expect(long messages) {
        expected = messages;
        if (came.get() >= messages) {
            done.countDown();
        }
    }

    boolean await(int seconds) throws InterruptedException {
        return done.await(seconds, TimeUnit.SECONDS);
    }

    long came() {
        return came.get();
    }

    /** How many came a second time; asked a moment after the end, so that late copies are seen too. */
    long duplicates() throws InterruptedException {
        Thread.sleep(300);
        return again.get();
    }
}
