// Reads topics to their ends with the official client and writes one line per message to a file (the client's
// libraries log to standard output):
// topic, queue id, queue offset, offset id, tags, keys, body in base64, tab-separated.
// usage: java -cp JARS Drain.java FILE NAMESRV TOPIC…

import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
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
    // The client's threads would keep the process alive after an error.
    public static void main(String[] args) {
        try {
            drain(args);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.exit(0);
    }

    @SuppressWarnings("deprecation")
    private static void drain(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("drain");
        consumer.setNamesrvAddr(args[1]);
        consumer.setInstanceName("drain-" + System.nanoTime());
        consumer.start();
        // Written as it is read: a topic may be larger than the memory given here.
        BufferedWriter out = Files.newBufferedWriter(Path.of(args[0]));
        for (int n = 2; n < args.length; n++) {
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
                        out.write(String.join("\t",
                            message.getTopic(),
                            String.valueOf(message.getQueueId()),
                            String.valueOf(message.getQueueOffset()),
                            ((org.apache.rocketmq.common.message.MessageClientExt) message).getOffsetMsgId(),
                            String.valueOf(message.getTags()),
                            String.valueOf(message.getKeys()),
                            Base64.getEncoder().encodeToString(message.getBody())) + "\n");
                    }
                }
            }
        }
        out.close();
        consumer.shutdown();
    }
}
