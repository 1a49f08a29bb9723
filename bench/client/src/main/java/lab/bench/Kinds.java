package lab.bench;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Backlogs of numbered messages and who drains them: orderly takes all, tag and sql take every fourth. */
final class Kinds {
    private static final int KINDS = 4;
    private static final int MAX_BATCH = 100;
    /** The most messages that Env.ensureTopic sends; they stand in front of the backlog. */
    private static final int TOPIC_MESSAGES = 4;
    private final Env env;

    Kinds(Env env) {
        this.env = env;
    }

    /** Gives the message with this number what it is selected by. */
    private interface Dress {
        void on(Message m, long number);
    }

    void orderly(int[] sizes, int count, PushDrain.Shape shape) throws Exception {
        MessageSelector all = MessageSelector.byTag("*");
        drain("orderly_drain", sizes, count, 1, shape, all, true, (m, number) -> { });
    }

    void tag(int[] sizes, int count, PushDrain.Shape shape) throws Exception {
        drain("tag_drain", sizes, count, KINDS, shape, MessageSelector.byTag("tag3"), false,
            (m, number) -> m.setTags("tag" + number % KINDS));
    }

    /** Neither half of the expression is enough: one kind fails by its region, another by a, a third by both. */
    void sql(int[] sizes, int count, PushDrain.Shape shape) throws Exception {
        MessageSelector selector = MessageSelector.bySql("a > 2 AND region = 'eu'");
        drain("sql_drain", sizes, count, KINDS, shape, selector, false, (m, number) -> {
            long kind = number % KINDS;
            m.putUserProperty("a", kind < 2 ? "1" : "5");
            m.putUserProperty("region", kind % 2 == 0 ? "us" : "eu");
        });
    }

    private void drain(String name, int[] sizes, int count, int step, PushDrain.Shape shape, MessageSelector selector,
        boolean orderly, Dress dress) throws Exception {
        boolean warm = false;
        for (int size : sizes) {
            String topic = env.topicPrefix + "_" + name + "_" + size;
            env.turn();
            fill(topic, size, count, dress);
            PushDrain drain = new PushDrain(env, name, topic, size, count, step, shape);
            long warmUntil = System.nanoTime() + (warm ? 0 : env.warmup() * 1_000_000_000L);
            while (System.nanoTime() < warmUntil) {
                drain.run(selector, orderly);
            }
            warm = true;
            for (int pass = 0; env.another(pass); pass++) {
                drain.run(selector, orderly).print();
            }
        }
    }

    /** Stores messages 0..count - 1 in batches, unless an earlier run did. */
    private void fill(String topic, int size, int count, Dress dress) throws Exception {
        DefaultMQProducer p = env.producer();
        byte[] pattern = Env.body(size, size);
        int most = Math.max(1, Math.min(MAX_BATCH, 1_000_000 / (size + 200)));
        try (Env.Probe probe = env.new Probe(topic)) {
            long stored = probe.settle(300)[0];
            List<MessageQueue> qs = probe.queues();
            for (int number = stored <= TOPIC_MESSAGES ? 0 : count, q = 0; number < count; q++) {
                List<Message> batch = new ArrayList<>(most);
                for (; batch.size() < most && number < count; number++) {
                    Message m = new Message(topic, Tally.body(pattern, number));
                    dress.on(m, number);
                    batch.add(m);
                }
                SendResult r = p.send(batch, qs.get(q % qs.size()));
                if (r.getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException("fill: " + r.getSendStatus());
                }
            }
            long all = probe.settle(1000)[0];
            if (all < count || all > count + TOPIC_MESSAGES) {
                throw new IllegalStateException(topic + " holds " + all + " messages, not " + count + "; use --topic");
            }
        } finally {
            p.shutdown();
        }
    }
}
