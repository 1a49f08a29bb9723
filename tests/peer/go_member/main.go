// Command member is a member of a consumer group with the unmodified rocketmq-client-go, until its standard input ends.
// Prints "ready", then one line per message: queue id and body, tab-separated.
// usage: member NAMESRV GROUP TOPIC
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	rlog.SetLogLevel("fatal")
	member, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{os.Args[1]})),
		consumer.WithGroupName(os.Args[2]),
		consumer.WithInstance("go-"+strconv.FormatInt(time.Now().UnixNano(), 10)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err != nil {
		fail(err)
	}
	var one sync.Mutex
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		one.Lock()
		defer one.Unlock()
		for _, message := range messages {
			fmt.Printf("%d\t%s\n", message.Queue.QueueId, message.Body)
		}
		return consumer.ConsumeSuccess, nil
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if err = member.Subscribe(os.Args[3], selector, handle); err != nil {
		fail(err)
	}
	if err = member.Start(); err != nil {
		fail(err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err = member.Shutdown(); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
