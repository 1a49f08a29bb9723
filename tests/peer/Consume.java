// A member of a consumer group with the official client, until its standard input ends.
// Prints "ready", then one line per message: queue id and body, tab-separated.
// usage: java -cp JARS Consume.java NAMESRV GROUP TOPIC

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

public class Consume {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setInstanceName("java-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[2], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            StringBuilder lines = new StringBuilder();
            for (MessageExt message : messages) {
                lines.append(message.getQueueId()).append('\t');
                lines.append(new String(message.getBody(), StandardCharsets.UTF_8)).append('\n');
            }
            synchronized (System.out) {
                System.out.print(lines);
                System.out.flush();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("ready");
        while (System.in.read() >= 0) {
            // Only the end of the input matters.
        }
        consumer.shutdown();
        System.exit(0);
    }
}
