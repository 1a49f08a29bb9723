package lab.bench;

import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A new group's push consumer takes what it wants of a numbered backlog; timed from its first message. */
final class PushDrain {
    private static final int LIMIT_S = 300;
    private static final int RETRY_MS = 20;
    private static final int MAX_QUEUES = 1024;
    private final Env env;
    private final String name;
    private final String topic;
    private final int size;
    private final int backlog;
    private final int step;
    private final Shape shape;

    /** The consumer's own settings. */
    static final class Shape {
        final int pullBatch;
        final int consumeBatch;
        final int threads;

        Shape(Args a) {
            pullBatch = a.list("pull-batches", "32")[0];
            consumeBatch = a.list("consume-batches", "1")[0];
            threads = a.num("consume-threads", 20);
        }
    }

    /** Of every `step` messages the last one is wanted. */
    PushDrain(Env env, String name, String topic, int size, int backlog, int step, Shape shape) {
        this.env = env;
        this.name = name;
        this.topic = topic;
        this.size = size;
        this.backlog = backlog;
        this.step = step;
        this.shape = shape;
    }

    /** What one pass has seen so far. */
    private final class Pass {
        final Tally tally = new Tally(0, backlog);
        final AtomicLong unwanted = new AtomicLong();
        final AtomicLong disorder = new AtomicLong();
        final AtomicLong first = new AtomicLong();
        final AtomicReference<Env.Usage> begin = new AtomicReference<>();
        private final AtomicLongArray next = new AtomicLongArray(MAX_QUEUES);

        void take(List<MessageExt> msgs, boolean orderly) {
            if (first.get() == 0 && first.compareAndSet(0, System.nanoTime())) {
                begin.set(env.new Usage());
            }
            for (MessageExt m : msgs) {
                if (orderly && next.getAndSet(m.getQueueId(), m.getQueueOffset() + 1) > m.getQueueOffset()) {
                    disorder.incrementAndGet();
                }
                int place = tally.place(m);
                if (place < 0 || place % step != step - 1) {
                    unwanted.incrementAndGet();
                } else {
                    tally.add(place);
                }
            }
        }
    }

    Json run(MessageSelector selector, boolean orderly) throws Exception {
        Pass pass = new Pass();
        int wanted = backlog / step;
        pass.tally.expect(wanted);
        DefaultMQPushConsumer c = new DefaultMQPushConsumer("bench_" + name + "_" + System.nanoTime());
        c.setNamesrvAddr(env.namesrv);
        c.setInstanceName("bench-" + System.nanoTime());
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setPullBatchSize(shape.pullBatch);
        c.setConsumeMessageBatchMaxSize(shape.consumeBatch);
        c.setConsumeThreadMin(shape.threads);
        c.setConsumeThreadMax(shape.threads);
        // The span counts what the filter leaves out too: as many messages on their way as without a filter.
        c.setConsumeConcurrentlyMaxSpan(c.getConsumeConcurrentlyMaxSpan() * step);
        // A first pull may overtake the heartbeat that announces it; its second try shall not come a second later.
        // Set inside, because the consumer's own setter comes too late to have an effect.
        c.getDefaultMQPushConsumerImpl().setPullTimeDelayMillsWhenException(RETRY_MS);
        c.subscribe(topic, selector);
        if (orderly) {
            c.registerMessageListener((MessageListenerOrderly) (msgs, ctx) -> {
                pass.take(msgs, true);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            c.registerMessageListener((MessageListenerConcurrently) (msgs, ctx) -> {
                pass.take(msgs, false);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        long t0 = System.nanoTime();
        c.start();
        boolean all = pass.tally.await(LIMIT_S);
        Env.Usage b = env.new Usage();
        long came = pass.tally.came();
        double secs = (b.nanos - pass.first.get()) / 1e9;
        Json j = env.line(name).put("size", size).put("pull_batch", shape.pullBatch)
            .put("consume_batch", shape.consumeBatch).put("threads", shape.threads).put("backlog", backlog)
            .put("wanted", wanted).put("consumed", came).put("complete", String.valueOf(all))
            .put("first_msg_ms", (pass.first.get() - t0) / 1e6).put("seconds", secs)
            .put("msg_s", came / secs).put("mb_s", came * (double) size / secs / 1e6);
        if (pass.begin.get() != null) {
            env.process(j, pass.begin.get(), b);
        }
        j.put("duplicates", pass.tally.duplicates());
        if (step > 1) {
            j.put("unwanted", pass.unwanted.get());
        }
        if (orderly) {
            j.put("disorder", pass.disorder.get());
        }
        c.shutdown();
        return j;
    }
}
