// Reads topics to their ends with the official client and prints one line per message:
// topic, queue id, queue offset, offset id, tags, keys, body in base64, tab-separated.
// usage: java -cp JARS Drain.java NAMESRV TOPIC…

import java.util.ArrayList;
import java.util.Base64;
import java.util.Comparator;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

public class Drain {
    @SuppressWarnings("deprecation")
    public static void main(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("drain");
        consumer.setNamesrvAddr(args[0]);
        consumer.setInstanceName("drain-" + System.nanoTime());
        consumer.start();
        StringBuilder out = new StringBuilder();
        for (int n = 1; n < args.length; n++) {
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(args[n]));
            queues.sort(Comparator.comparingInt(MessageQueue::getQueueId));
            for (MessageQueue queue : queues) {
                long offset = consumer.minOffset(queue);
                while (true) {
                    PullResult result = consumer.pull(queue, "*", offset, 32);
                    offset = result.getNextBeginOffset();
                    if (result.getPullStatus() == PullStatus.NO_NEW_MSG) {
                        break;
                    }
                    if (result.getPullStatus() == PullStatus.OFFSET_ILLEGAL) {
                        throw new IllegalStateException(queue + " says that " + offset + " is illegal");
                    }
                    if (result.getMsgFoundList() == null) {
                        continue;
                    }
                    for (MessageExt message : result.getMsgFoundList()) {
                        out.append(String.join("\t",
                            message.getTopic(),
                            String.valueOf(message.getQueueId()),
                            String.valueOf(message.getQueueOffset()),
                            ((org.apache.rocketmq.common.message.MessageClientExt) message).getOffsetMsgId(),
                            String.valueOf(message.getTags()),
                            String.valueOf(message.getKeys()),
                            Base64.getEncoder().encodeToString(message.getBody()))).append('\n');
                    }
                }
            }
        }
        System.out.print(out);
        System.out.flush();
        consumer.shutdown();
        System.exit(0);
    }
}
