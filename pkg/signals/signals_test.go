package signals_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tandem-serving/tandem/pkg/signals"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSubjects(t *testing.T) {
	for got, want := range map[string]string{
		signals.LoadSubject(controlv1.Role_ROLE_ROUTER, "router-1"):         "tandem.v1.load.router.router-1",
		signals.LoadSubject(controlv1.Role_ROLE_DECODE, "decode-1"):         "tandem.v1.load.decode.decode-1",
		signals.LoadSubject(controlv1.Role_ROLE_PREFILL, "prefill-1"):       "tandem.v1.load.prefill.prefill-1",
		signals.LoadSubject(controlv1.Role_ROLE_KVTRANSFER, "10.0.0.1:707"): "tandem.v1.load.kvtransfer.10%2E0%2E0%2E1%3A707",
		signals.KvSubject("a b"):               "tandem.v1.kv.a%20b",
		signals.KvSubject("*"):                 "tandem.v1.kv.%2A",
		signals.KvSubject(">"):                 "tandem.v1.kv.%3E",
		signals.KvSubject("100%"):              "tandem.v1.kv.100%25",
		signals.QueueSubject(""):               "tandem.v1.queue.%",
		signals.QueueSubject("meta/llama-3.1"): "tandem.v1.queue.meta%2Fllama-3%2E1",
		signals.QueueSubject("é"):              "tandem.v1.queue.%C3%A9",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// decodeToken undoes EncodeToken.
func decodeToken(token string) string {
	if token == "%" {
		return ""
	}
	var name []byte
	for i := 0; i < len(token); i++ {
		b := token[i]
		if b == '%' {
			_, _ = fmt.Sscanf(token[i+1:i+3], "%02X", &b)
			i += 2
		}
		name = append(name, b)
	}
	return string(name)
}

func FuzzEncodeToken(f *testing.F) {
	for _, name := range []string{"", "a", "%", "%20", " ", "a.b.*.>", "\x00\xff\r\n"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		token := signals.EncodeToken(name)
		if token == "" || strings.ContainsAny(token, " .*>\t\r\n\x00") {
			t.Errorf("%q is encoded as %q, which is not one token", name, token)
		}
		if got := decodeToken(token); got != name {
			t.Errorf("%q is encoded as %q, which reads %q", name, token, got)
		}
	})
}

func TestConnectRefusesBadConfiguration(t *testing.T) {
	for _, urls := range [][]string{nil, {""}, {"127.0.0.1:4222"}, {"http://a:1"}, {"nats://"}, {"nats://a,nats://b"}, {"nats://a", "b"}} {
		conn, err := signals.Connect(signals.Config{URLs: urls}, slog.New(slog.DiscardHandler))
		if err == nil {
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "nats://127.0.0.1:4222") {
			t.Errorf("%q: %v does not say what to give", urls, err)
		}
	}
}

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func TestWithoutNATSNothingBlocksOrFails(t *testing.T) {
	var output bytes.Buffer
	registry := prometheus.NewRegistry()
	conn, err := signals.Connect(signals.Config{URLs: []string{"nats://" + freeAddress(t)}, Registerer: registry},
		slog.New(slog.NewTextHandler(&output, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if conn.Connected() {
		t.Error("connected to nothing")
	}
	stop, err := conn.Subscribe(signals.Handlers{Kv: func(*controlv1.KvEvent) { t.Error("a signal from nowhere") }})
	if err != nil {
		t.Fatal(err)
	}
	publisher := conn.NewPublisher("decode-1", 1)
	report := &controlv1.LoadReport{Role: controlv1.Role_ROLE_DECODE}
	for i := range 3000 {
		publisher.Load(report)
		publisher.Kv(trace.SpanContext{}, []uint64{1}, []uint64{2})
		publisher.Queue(&controlv1.QueueReport{Model: fmt.Sprint(i)}) // more models than are kept
	}
	publisher.Queue(&controlv1.QueueReport{Model: "\xff"})
	publisher.Kv(trace.SpanContext{}, nil, nil) // nothing to say
	if report.GetOrigin() != nil {
		t.Error("the caller's report was changed")
	}
	stop()
	stop()
	conn.Close()
	conn.Close()
	publisher.Load(report)
	if _, err := conn.Subscribe(signals.Handlers{Load: func(*controlv1.LoadReport) {}}); err == nil {
		t.Error("subscribed on a closed connection")
	}

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var dropped, sent float64
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			switch family.GetName() {
			case "tandem_signals_dropped_total":
				dropped += metric.GetCounter().GetValue()
			case "tandem_signals_sent_total":
				sent += metric.GetCounter().GetValue()
			}
		}
	}
	if dropped != 9002 || sent != 0 {
		t.Errorf("%v signals were dropped and %v sent, want 9002 and 0", dropped, sent)
	}
	if got := strings.Count(output.String(), "NATS does not answer"); got != 1 {
		t.Errorf("said %d times, want once:\n%s", got, output.String())
	}
	if got := strings.Count(output.String(), "level=WARN"); got > 2 { // and maybe why
		t.Errorf("%d warnings, want one or two:\n%s", got, output.String())
	}
}

// lines are those of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}

// Why several servers cannot be reached is said once, and not with each try for as long as it lasts.
func TestWhyIsSaidOnce(t *testing.T) {
	urls := []string{"nats://" + freeAddress(t), "nats://" + freeAddress(t)}
	synctest.Test(t, func(t *testing.T) {
		said := make(lines, 100)
		conn, err := signals.Connect(signals.Config{URLs: urls}, slog.New(slog.NewTextHandler(said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		conn.Close()
		close(said)
		var why []string
		for line := range said {
			if strings.Contains(line, "cannot connect to NATS") {
				why = append(why, line)
			}
		}
		if len(why) != 1 || !strings.Contains(why[0], "connection refused") {
			t.Errorf("said %d times, want once: %q", len(why), why)
		}
	})
}

// The log says why a server lets nobody in.
func TestWhyThereIsNoConnection(t *testing.T) {
	stranger := httptest.NewTLSServer(nil) // for its certificate
	defer stranger.Close()
	for _, c := range []struct {
		name, scheme, info, want string
		serve                    func(conn net.Conn) error // after the greeting
	}{
		{"wrong credentials", "nats", `{"auth_required":true}`, "Authorization Violation", func(conn net.Conn) error {
			if _, err := io.WriteString(conn, "-ERR 'Authorization Violation'\r\n"); err != nil {
				return err
			}
			_, err := io.Copy(io.Discard, conn) // until the client hangs up
			return err
		}},
		{"a server of another authority", "tls", `{"tls_required":true}`, "x509: ", func(conn net.Conn) error {
			return tls.Server(conn, stranger.TLS).Handshake()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var server sync.WaitGroup
			server.Go(func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					if _, err := io.WriteString(conn, "INFO "+c.info+"\r\n"); err == nil {
						_ = c.serve(conn) // the client has hung up
					}
					_ = conn.Close()
				}
			})
			defer server.Wait()
			defer func() { _ = listener.Close() }()
			said := make(lines, 100)
			conn, err := signals.Connect(signals.Config{URLs: []string{c.scheme + "://" + listener.Addr().String()}}, slog.New(slog.NewTextHandler(said, nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			publisher := conn.NewPublisher("decode-1", 1)
			end := time.After(time.Minute)
			for {
				publisher.Load(&controlv1.LoadReport{Role: controlv1.Role_ROLE_DECODE})
				select {
				case line := <-said:
					if strings.Contains(line, "cannot connect to NATS") && strings.Contains(line, c.want) {
						return
					}
				case <-time.After(10 * time.Millisecond):
				case <-end:
					t.Fatal("it is not said")
				}
			}
		})
	}
}

// What a server finds wrong again and again is in the log once.
func TestErrorsOfAServerDoNotFillTheLog(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hangUp := make(chan struct{})
	var server sync.WaitGroup
	server.Go(func() {
		conn, err := listener.Accept()
		_ = listener.Close()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "INFO {}\r\n"); err != nil {
			return
		}
		for lines := bufio.NewScanner(conn); lines.Scan() && lines.Text() != "PING"; {
		}
		denied := strings.Repeat("-ERR 'Permissions Violation for Publish to \"tandem.load\"'\r\n", 100)
		if _, err := io.WriteString(conn, "PONG\r\n"+denied); err == nil {
			<-hangUp
		}
	})
	defer server.Wait()
	said := make(lines, 200)
	conn, err := signals.Connect(signals.Config{URLs: []string{"nats://" + listener.Addr().String()}}, slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for n := 0; ; {
		line := <-said
		if strings.Contains(line, "Permissions Violation") && strings.Contains(line, "NATS reports an error") {
			if n++; n > 1 {
				t.Fatal("it is said more than once")
			}
			close(hangUp)
		}
		if strings.Contains(line, "NATS is away") {
			return
		}
	}
}
