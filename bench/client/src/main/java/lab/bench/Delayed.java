package lab.bench;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReference;
import org.HdrHistogram.ConcurrentHistogram;
import org.HdrHistogram.Histogram;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages of delay level 1: how fast they are accepted, and how they arrive once the first of them is due. */
final class Delayed {
    private static final int LEVEL = 1;
    private static final long DELAY_NS = 1_000_000_000L;
    /** Brokers count in whole milliseconds; what comes earlier than this many before its time is early. */
    private static final long CLOCK_NS = 2_000_000L;
    private static final long LONGEST_NS = 60_000_000_000L;
    private static final int LIMIT_S = 300;
    private final Env env;
    private final int threads;
    private final int limit;
    private final AtomicReference<Pass> current = new AtomicReference<>();

    Delayed(Env env, int threads, int limit) {
        this.env = env;
        this.threads = threads;
        this.limit = limit;
    }

    /** One round of at most `limit` messages, all of which have to arrive before the next. */
    private final class Pass {
        final long from;
        final Tally tally;
        final AtomicInteger next = new AtomicInteger();
        final AtomicLongArray sentAt = new AtomicLongArray(limit);
        final AtomicLong ok = new AtomicLong();
        final AtomicLong fail = new AtomicLong();
        final AtomicLong early = new AtomicLong();
        final AtomicReference<String> error = new AtomicReference<>();
        final Histogram accepted = new ConcurrentHistogram(LONGEST_NS, 3);
        final Histogram late = new ConcurrentHistogram(LONGEST_NS, 3);

        Pass(long from) {
            this.from = from;
            tally = new Tally(from, limit);
        }

        void send(DefaultMQProducer p, String topic, byte[] pattern, long end) {
            int n;
            while (System.nanoTime() < end && (n = next.getAndIncrement()) < limit) {
                Message m = new Message(topic, Tally.body(pattern, from + n));
                m.setDelayTimeLevel(LEVEL);
                long t0 = System.nanoTime();
                sentAt.set(n, t0);
                try {
                    if (p.send(m).getSendStatus() == SendStatus.SEND_OK) {
                        ok.incrementAndGet();
                        accepted.recordValue(Math.min(System.nanoTime() - t0, LONGEST_NS));
                    } else {
                        fail.incrementAndGet();
                    }
                } catch (Exception e) {
                    fail.incrementAndGet();
                    error.compareAndSet(null, String.valueOf(e.getMessage()).split("\n")[0]);
                }
            }
        }

        void take(MessageExt m, long now) {
            int place = tally.place(m);
            if (place < 0) {
                return; // of an earlier pass or run
            }
            long beyond = now - sentAt.get(place) - DELAY_NS;
            if (tally.add(place)) {
                late.recordValue(Math.max(0, Math.min(beyond, LONGEST_NS)));
                if (beyond < -CLOCK_NS) {
                    early.incrementAndGet();
                }
            }
        }
    }

    void run(int[] sizes) throws Exception {
        for (int size : sizes) {
            String topic = env.topicPrefix + "_delayed_" + size;
            DefaultMQProducer p = env.producer();
            try (Env.Probe probe = env.new Probe(topic)) {
                long from = probe.settle(300)[0];
                current.set(new Pass(from));
                DefaultMQPushConsumer c = consumer(topic);
                env.turn();
                // Every pass goes to its end, the unreported ones of the warm-up too: nothing is left over.
                long warmUntil = System.nanoTime() + env.warmup() * 1_000_000_000L;
                while (System.nanoTime() < warmUntil) {
                    pass(p, probe, topic, size, from, false);
                    from += limit;
                }
                for (int number = 0; env.another(number); number++) {
                    pass(p, probe, topic, size, from, true);
                    from += limit;
                }
                c.shutdown();
            }
            p.shutdown();
        }
    }

    private DefaultMQPushConsumer consumer(String topic) throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer("bench_delayed_" + System.nanoTime());
        c.setNamesrvAddr(env.namesrv);
        c.setInstanceName("bench-" + System.nanoTime());
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(topic, "*");
        c.registerMessageListener((MessageListenerConcurrently) (msgs, ctx) -> {
            long now = System.nanoTime();
            for (MessageExt m : msgs) {
                current.get().take(m, now);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        return c;
    }

    private void pass(DefaultMQProducer p, Env.Probe probe, String topic, int size, long from, boolean print)
        throws Exception {
        long before = probe.stored();
        byte[] pattern = Env.body(size, size);
        Pass pass = new Pass(from);
        current.set(pass);
        CountDownLatch senders = new CountDownLatch(threads);
        Env.Usage a = env.new Usage();
        long end = a.nanos + env.durationSec * 1_000_000_000L;
        for (int i = 0; i < threads; i++) {
            Thread t = new Thread(() -> {
                pass.send(p, topic, pattern, end);
                senders.countDown();
            });
            t.setDaemon(true);
            t.start();
        }
        senders.await();
        double sendSecs = (System.nanoTime() - a.nanos) / 1e9;
        pass.tally.expect(pass.ok.get());
        boolean all = pass.tally.await(LIMIT_S);
        Env.Usage b = env.new Usage();
        if (!print) {
            return;
        }
        // No CPU here: deliveries of the first messages and sends of the last share the window.
        Json sends = env.line("delayed").put("threads", threads).put("size", size).put("seconds", sendSecs)
            .put("ok", pass.ok.get()).put("fail", pass.fail.get()).put("stored", probe.settle(500)[0] - before)
            .put("msg_s", pass.ok.get() / sendSecs).lat("lat", pass.accepted);
        if (pass.error.get() != null) {
            sends.put("first_error", pass.error.get());
        }
        sends.print();
        double secs = (b.nanos - a.nanos - DELAY_NS) / 1e9;
        long came = pass.tally.came();
        // CPU is that of the messages' whole life, from the first send to the last arrival.
        Json arrivals = env.line("delayed_arrival").put("size", size).put("wanted", pass.ok.get())
            .put("consumed", came).put("complete", String.valueOf(all)).put("duplicates", pass.tally.duplicates())
            .put("early", pass.early.get()).put("seconds", secs).put("msg_s", came / secs)
            .put("broker_cpu_us", (b.broker - a.broker) * 1e6 / Math.max(1, came)).lat("late", pass.late);
        env.process(arrivals, a, b);
        arrivals.print();
    }
}
