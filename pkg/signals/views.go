package signals

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/proto"
)

// viewSubject is where routers are asked for their last view of the membership.
const viewSubject = "tandem.v1.view"

const (
	// answersASecond bounds how often one router answers, whoever asks.
	answersASecond = 20
	// maxAnswers bounds how many routers are listened to.
	maxAnswers = 64
	// inboxPrefix is how the NATS client names where answers go. An answer to any
	// other subject would be a signal of somebody's making.
	inboxPrefix = "_INBOX."
	// noResponders is the status by which NATS says that nobody is asked.
	noResponders = "503"
	// headerBytes is what a message has besides its payload.
	headerBytes = 4 << 10
)

// AnswerViews answers routers that ask for the last view of the membership with what
// view returns; nil: with silence. view is called from one goroutine and must not
// block. The function that AnswerViews returns ends that. A view that is longer than a
// message may be is not sent. The error says that the connection is closed.
func (c *Conn) AnswerViews(view func() *controlv1.MembershipView) (func(), error) {
	var window time.Time
	answers, complained := 0, false
	subscription, err := c.nats.Subscribe(viewSubject, func(question *nats.Msg) {
		if now := time.Now(); now.Sub(window) >= time.Second {
			window, answers = now, 0
		}
		if answers == answersASecond || !strings.HasPrefix(question.Reply, inboxPrefix) {
			return
		}
		answers++
		answer := view()
		if answer == nil {
			return
		}
		payload, err := proto.Marshal(answer)
		if err != nil { // text that is not UTF-8
			c.metrics.dropped.WithLabelValues(kindView, "malformed").Inc()
			return
		}
		if most := c.nats.MaxPayload() - headerBytes; most > 0 && int64(len(payload)) > most {
			c.metrics.dropped.WithLabelValues(kindView, "too_large").Inc()
			if !complained {
				complained = true
				c.log.Warn("the view of the membership is too large to send to another router, which needs its own view on disk; logged once",
					slog.Int("bytes", len(payload)), slog.Int64("most", most))
			}
			return
		}
		c.enqueue(outgoing{kind: kindView, subject: question.Reply, payload: payload})
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", viewSubject, err)
	}
	// The second is the client's default for bytes. What comes faster is not answered.
	_ = subscription.SetPendingLimits(answersASecond, 64<<20)
	return sync.OnceFunc(func() {
		// It fails only when the connection is closed, which ends it too.
		_ = subscription.Unsubscribe()
	}), nil
}

// AskViews asks the other routers for their last view of the membership, and returns
// the answers that come until ctx ends, or the first of a router that etcd answers now.
// Without a connection, or where there is nobody to ask, there are none, at once.
func (c *Conn) AskViews(ctx context.Context) []*controlv1.MembershipView {
	if !c.nats.IsConnected() {
		return nil
	}
	inbox := nats.NewInbox()
	subscription, err := c.nats.SubscribeSync(inbox)
	if err != nil {
		return nil
	}
	defer func() { _ = subscription.Unsubscribe() }()
	_ = subscription.SetPendingLimits(maxAnswers, 64<<20)
	if err := c.nats.PublishRequest(viewSubject, inbox, nil); err != nil {
		return nil
	}
	var views []*controlv1.MembershipView
	for len(views) < maxAnswers {
		message, err := subscription.NextMsgWithContext(ctx)
		if err != nil || message.Header.Get("Status") == noResponders { // ctx ended, or there is nobody
			break
		}
		view := &controlv1.MembershipView{}
		if err := proto.Unmarshal(message.Data, view); err != nil {
			c.metrics.malformed.WithLabelValues(kindView).Inc()
			continue
		}
		c.metrics.received.WithLabelValues(kindView).Inc()
		views = append(views, view)
		if view.GetLive() {
			break
		}
	}
	return views
}
