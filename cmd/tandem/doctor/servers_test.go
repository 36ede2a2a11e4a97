package doctor_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/doctor"
	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/signals"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// asked asks for so long at most.
func asked(t *testing.T, most time.Duration, question doctor.Question) []doctor.Check {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	return question(ctx)
}

const quickly = 100 * time.Millisecond

func TestEtcd(t *testing.T) {
	check(t, "nobody listens", asked(t, quickly, doctor.Etcd(membership.Config{Endpoints: []string{"http://127.0.0.1:1"}})), [3]string{"etcd", "failed", "127.0.0.1:1"})
	etcd, err := embedded.StartEtcd(t.Context(), embedded.EtcdConfig{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	cfg := membership.Config{Endpoints: []string{etcd.Endpoint()}}
	check(t, "no parts", asked(t, time.Minute, doctor.Etcd(cfg)), [3]string{"etcd", "warning", "none of a router"}, [3]string{"versions in etcd", "skipped", ""})

	client, err := membership.Connect(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	register := func(id, version string) *membership.Registration {
		return client.Register(&controlv1.WorkerRecord{
			Id: id, Role: controlv1.Role_ROLE_ROUTER, Epoch: 1, State: controlv1.WorkerState_WORKER_STATE_SERVING, Version: version, Addresses: []string{"127.0.0.1:1"},
		})
	}
	first, second := register("r1", "v1"), register("r2", "v2")
	defer first.Close(context.WithoutCancel(t.Context()))
	defer second.Close(context.WithoutCancel(t.Context()))
	for _, registration := range []*membership.Registration{first, second} {
		if err := registration.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	check(t, "two routers", asked(t, time.Minute, doctor.Etcd(cfg)), [3]string{"versions in etcd", "warning", "v1 (r1), v2 (r2)"})
}

func TestNATS(t *testing.T) {
	check(t, "nobody listens", asked(t, time.Minute, doctor.NATS(signals.Config{URLs: []string{"nats://127.0.0.1:1"}})), [3]string{"NATS", "failed", "127.0.0.1:1"})
	nats, err := embedded.StartNATS(embedded.NATSConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer nats.Close()
	cfg := signals.Config{URLs: []string{strings.Replace(nats.URL(), "://", "://hans:secret@", 1)}}
	// The connection, too, has to be made within the time.
	alone := asked(t, quickly, doctor.NATS(cfg))
	for most := quickly; alone[0].Status == doctor.Failed && most < time.Minute; most *= 8 {
		alone = asked(t, most, doctor.NATS(cfg))
	}
	check(t, "no worker", alone, [3]string{"NATS", "warning", "no worker reports its load to nats://xxxxx@"})

	conn, err := signals.Connect(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	publisher := conn.NewPublisher("d1", 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			publisher.Load(&controlv1.LoadReport{Role: controlv1.Role_ROLE_DECODE})
			<-ticker.C
		}
	}()
	check(t, "a worker", asked(t, time.Minute, doctor.NATS(cfg)))
	cancel()
	<-done
}
