package integration_test

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/integration/clustertest"
	"github.com/tandem-serving/tandem/pkg/signals"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// startNATS starts NATS; port 0 is any.
func startNATS(t *testing.T, port int) *embedded.NATS {
	t.Helper()
	server, err := embedded.StartNATS(embedded.NATSConfig{Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// portOf is the port of a server's URL.
func portOf(t *testing.T, address string) int {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(parsed.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func connectNATS(t *testing.T, address string) *signals.Conn {
	t.Helper()
	conn, err := signals.Connect(signals.Config{URLs: []string{address}, Name: t.Name()}, testLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// until calls try again and again until it says true.
func until(t *testing.T, what string, try func() bool) {
	t.Helper()
	clustertest.Await(t, func() string {
		if try() {
			return ""
		}
		return "not yet: " + what
	})
}

// listen subscribes to everything.
func listen(t *testing.T, conn *signals.Conn) (chan *controlv1.LoadReport, chan *controlv1.KvEvent, chan *controlv1.QueueReport) {
	t.Helper()
	loads, events, queues := make(chan *controlv1.LoadReport, 4096), make(chan *controlv1.KvEvent, 4096), make(chan *controlv1.QueueReport, 4096)
	stop, err := conn.Subscribe(signals.Handlers{
		Load:  func(m *controlv1.LoadReport) { loads <- m },
		Kv:    func(m *controlv1.KvEvent) { events <- m },
		Queue: func(m *controlv1.QueueReport) { queues <- m },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return loads, events, queues
}

func TestSignalsOnRealNATS(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	reader, writer := connectNATS(t, server.URL()), connectNATS(t, server.URL())
	loads, events, queues := listen(t, reader)
	publisher := writer.NewPublisher("10.0.0.1:7071 *>", 9)
	// A subscription may reach the server after the first signal.
	until(t, "the first load report", func() bool {
		publisher.Load(&controlv1.LoadReport{Role: controlv1.Role_ROLE_DECODE, RunningSequences: 3})
		select {
		case report := <-loads:
			origin := report.GetOrigin()
			if origin.GetId() != "10.0.0.1:7071 *>" || origin.GetEpoch() != 9 || report.GetRunningSequences() != 3 {
				t.Fatalf("got %v", report)
			}
			return true
		default:
			return false
		}
	})
	hashes := make([]uint64, 100_000)
	for i := range hashes {
		hashes[i] = uint64(i)
	}
	publisher.Kv(trace.SpanContext{}, hashes, []uint64{1 << 63})
	var stored, sequence uint64
	removed := 0
	for stored < uint64(len(hashes)) {
		select {
		case event := <-events:
			sequence++
			if event.GetOrigin().GetSequence() != sequence {
				t.Fatalf("sequence %d, want %d", event.GetOrigin().GetSequence(), sequence)
			}
			removed += len(event.GetRemoved())
			for _, hash := range event.GetStored() {
				if hash != stored {
					t.Fatalf("hash %d, want %d", hash, stored)
				}
				stored++
			}
		case <-time.After(timeout):
			t.Fatalf("%d of %d hashes came", stored, len(hashes))
		}
	}
	if removed != 1 {
		t.Errorf("%d hashes were removed, want 1", removed)
	}
	publisher.Queue(&controlv1.QueueReport{Model: "meta/llama-3.1 8b", Queues: []*controlv1.QueueDepth{{Requests: 4}}})
	select {
	case report := <-queues:
		if report.GetModel() != "meta/llama-3.1 8b" || report.GetOrigin().GetSequence() != 1 {
			t.Errorf("got %v", report)
		}
	case <-time.After(timeout):
		t.Fatal("no queue report")
	}
}

// fill gives every field a value, and every list one element.
func fill(m protoreflect.Message) {
	value := func(f protoreflect.FieldDescriptor, message func() protoreflect.Value) protoreflect.Value {
		switch f.Kind() {
		case protoreflect.MessageKind:
			v := message()
			fill(v.Message())
			return v
		case protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(1)
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(true)
		case protoreflect.StringKind:
			return protoreflect.ValueOfString(string(f.Name()))
		case protoreflect.DoubleKind:
			return protoreflect.ValueOfFloat64(float64(f.Number()) / 2)
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(int32(f.Number()))
		case protoreflect.Uint32Kind:
			return protoreflect.ValueOfUint32(uint32(f.Number()))
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(int64(f.Number()))
		case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
			return protoreflect.ValueOfUint64(uint64(f.Number()))
		}
		panic("fill cannot fill " + string(f.FullName()))
	}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if f.IsList() {
			list := m.Mutable(f).List()
			list.Append(value(f, list.NewElement))
			continue
		}
		m.Set(f, value(f, func() protoreflect.Value { return m.NewField(f) }))
	}
}

func TestAllFieldsOfSignalsArrive(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	reader, writer := connectNATS(t, server.URL()), connectNATS(t, server.URL())
	came := make(chan proto.Message, 4096)
	stop, err := reader.Subscribe(signals.Handlers{
		Load:    func(m *controlv1.LoadReport) { came <- m },
		Queue:   func(m *controlv1.QueueReport) { came <- m },
		Router:  func(m *controlv1.RouterReport) { came <- m },
		Tenants: func(m *controlv1.TenantReport) { came <- m },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	publisher := writer.NewPublisher("id", 9)
	publisher.Kv(trace.SpanContext{}, make([]uint64, 1), nil)
	load, queue, router, tenants := &controlv1.LoadReport{}, &controlv1.QueueReport{}, &controlv1.RouterReport{}, &controlv1.TenantReport{}
	for _, kind := range []struct {
		report  proto.Message
		publish func()
	}{
		{load, func() { publisher.Load(load) }},
		{queue, func() { publisher.Queue(queue) }},
		{router, func() { publisher.Router(router) }},
		{tenants, func() { publisher.Tenants(tenants) }},
	} {
		fill(kind.report.ProtoReflect())
		load.KvSequence = 1 // of the event above
		given := proto.Clone(kind.report)
		var got proto.Message
		until(t, string(given.ProtoReflect().Descriptor().Name()), func() bool {
			kind.publish()
			select {
			case got = <-came:
				return got.ProtoReflect().Descriptor() == given.ProtoReflect().Descriptor() // or one from before
			default:
				return false
			}
		})
		if !proto.Equal(kind.report, given) {
			t.Errorf("the caller's report was changed to %v", kind.report)
		}
		origin := given.ProtoReflect().Descriptor().Fields().ByName("origin")
		given.ProtoReflect().Set(origin, got.ProtoReflect().Get(origin))
		if !proto.Equal(got, given) {
			t.Errorf("got %v\nwant %v", got, given)
		}
	}
}

func TestSignalsSurviveNATS(t *testing.T) {
	t.Parallel()
	port := clustertest.FreePort(t)
	server := startNATS(t, port)
	reader, writer := connectNATS(t, server.URL()), connectNATS(t, server.URL())
	loads, _, _ := listen(t, reader)
	publisher := writer.NewPublisher("decode-1", 9)
	var sent, last uint64
	send := func() {
		sent++
		publisher.Load(&controlv1.LoadReport{Role: controlv1.Role_ROLE_DECODE})
	}
	receive := func() bool {
		select {
		case report := <-loads:
			if sequence := report.GetOrigin().GetSequence(); sequence <= last {
				t.Fatalf("sequence %d after %d", sequence, last)
			}
			last = report.GetOrigin().GetSequence()
			return true
		default:
			return false
		}
	}
	until(t, "the first report", func() bool { send(); return receive() })

	server.Close()
	until(t, "NATS seen away", func() bool { return !writer.Connected() && !reader.Connected() })
	before := sent     // one of these may have been on its way as the connection broke, and come late
	for range 10_000 { // which does not wait for NATS
		send()
	}
	away := sent

	startNATS(t, port)
	until(t, "NATS seen back", func() bool { return writer.Connected() && reader.Connected() })
	until(t, "a report", func() bool { send(); return receive() && last > before })
	if last <= away {
		t.Errorf("report %d came, of %d to %d sent without NATS: stale reports were replayed", last, before+1, away)
	}
}

func TestSignalsStartWithoutNATS(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	server.Close()
	conn := connectNATS(t, server.URL())
	loads, _, _ := listen(t, conn)
	if conn.Connected() {
		t.Error("connected to nothing")
	}
	startNATS(t, portOf(t, server.URL()))
	publisher := conn.NewPublisher("decode-1", 9)
	until(t, "a report", func() bool {
		publisher.Load(&controlv1.LoadReport{Role: controlv1.Role_ROLE_DECODE})
		select {
		case <-loads:
			return true
		default:
			return false
		}
	})
}

func TestEmbeddedNATSRefuses(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	if _, err := embedded.StartNATS(embedded.NATSConfig{Port: portOf(t, server.URL())}); err == nil || !strings.Contains(err.Error(), "already in use") {
		t.Errorf("on a port in use the error is %v", err)
	}
}

// Routers ask each other for the last view of the membership.
func TestViewsOnRealNATS(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	asker, first, second := connectNATS(t, server.URL()), connectNATS(t, server.URL()), connectNATS(t, server.URL())
	ask := func(within time.Duration) (views []*controlv1.MembershipView, early bool) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return asker.AskViews(ctx), ctx.Err() == nil
	}
	if got, early := ask(timeout); len(got) != 0 || !early {
		t.Errorf("nobody answered %v, before the end of its time: %v", got, early)
	}
	answer := func(conn *signals.Conn, view *controlv1.MembershipView) {
		t.Helper()
		stop, err := conn.AnswerViews(func() *controlv1.MembershipView { return view })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
	}
	old := &controlv1.MembershipView{Router: "old", Age: durationpb.New(time.Hour), Workers: []*controlv1.WorkerRecord{workerRecord("a", 1)}}
	answer(first, old)
	until(t, "the old view", func() bool {
		got, _ := ask(300 * time.Millisecond)
		return len(got) == 1 && proto.Equal(got[0], old)
	})
	answer(first, nil)
	answer(first, &controlv1.MembershipView{Router: strings.Repeat("x", 2<<20)}) // more than a message may be
	live := &controlv1.MembershipView{Router: "live", Live: true, Workers: []*controlv1.WorkerRecord{workerRecord("a", 2)}}
	answer(second, live)
	until(t, "the live view", func() bool {
		got, _ := ask(300 * time.Millisecond)
		return len(got) > 0 && proto.Equal(got[len(got)-1], live)
	})
	if got, early := ask(timeout); len(got) == 0 || !early {
		t.Errorf("with a live view there it went on waiting: %v", got)
	}
	// What is no view, and who asks for the answer elsewhere or too often, do no harm.
	raw, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	elsewhere, err := raw.SubscribeSync("tandem.v1.load.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.PublishRequest("tandem.v1.view", "tandem.v1.load.decode.a", nil); err != nil {
		t.Fatal(err)
	}
	inbox := nats.NewInbox()
	answers, err := raw.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if err := raw.PublishRequest("tandem.v1.view", inbox, []byte("anything")); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "an answer", func() bool { count, _, err := answers.Pending(); return err != nil || count > 0 })
	if message, err := elsewhere.NextMsg(500 * time.Millisecond); err == nil {
		t.Errorf("a router answered on %s", message.Subject)
	}
	if count, _, err := answers.Pending(); err != nil || count == 0 || count > 200 {
		t.Errorf("%d answers to 1000 questions, %v", count, err)
	}
	server.Close()
	if got, _ := ask(time.Second); len(got) != 0 {
		t.Errorf("without NATS: %v", got)
	}
}
