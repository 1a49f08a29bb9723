// Numbered messages with the official client and its defaults, until standard input ends. Lines are tab-separated:
//   try NANOS KEY                      before a message is sent
//   end NANOS KEY STATUS QUEUE OFFSET  what the broker said, or the exception's name with -1 and -1
//   got NANOS KEY QUEUE OFFSET         a message that arrived
// usage: java -cp JARS Numbered.java send|consume NAMESRV TOPIC NAME [POLL_NAME_SERVER_MS]

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class Numbered {
    public static void main(String[] args) throws Exception {
        if (args[0].equals("send")) {
            send(args[1], args[2], args[3], args.length > 4 ? Integer.parseInt(args[4]) : 0);
        } else {
            consume(args[1], args[2], args[3]);
        }
        System.exit(0);
    }

    private static void send(String namesrv, String topic, String name, int pollMs) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("pg-" + name);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(name);
        if (pollMs > 0) {
            producer.setPollNameServerInterval(pollMs);
        }
        producer.start();
        print("ready");
        for (int number = 0; System.in.available() == 0; number++) {
            String key = name + "-" + number;
            print("try", System.nanoTime(), key);
            try {
                byte[] body = key.getBytes(StandardCharsets.UTF_8);
                SendResult result = producer.send(new Message(topic, body));
                print("end", System.nanoTime(), key, result.getSendStatus(),
                    result.getMessageQueue().getQueueId(), result.getQueueOffset());
            } catch (Exception problem) {
                print("end", System.nanoTime(), key, problem.getClass().getSimpleName(), -1, -1);
            }
            Thread.sleep(20);
        }
        producer.shutdown();
    }

    private static void consume(String namesrv, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                print("got", System.nanoTime(), new String(message.getBody(), StandardCharsets.UTF_8),
                    message.getQueueId(), message.getQueueOffset());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        print("ready");
        while (System.in.available() == 0) {
            Thread.sleep(50);
        }
        consumer.shutdown();
    }

    private static synchronized void print(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() > 0 ? "\t" : "").append(word);
        }
        System.out.println(line);
        System.out.flush();
    }
}
