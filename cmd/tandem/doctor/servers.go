package doctor

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/signals"
)

// Etcd asks etcd for the records of all parts.
func Etcd(cfg membership.Config) Question {
	return func(ctx context.Context) []Check {
		at := strings.Join(cfg.Endpoints, ", ")
		failed := func(err error, advice string) []Check {
			return []Check{{Name: "etcd", Status: Failed, Detail: err.Error(), Advice: advice}}
		}
		client, err := membership.Connect(ctx, cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			return failed(err, "check --etcd, that it runs, and the certificate or password that it asks for")
		}
		defer client.Close()
		view, err := readView(ctx, client)
		if err != nil {
			return failed(fmt.Errorf("the records at %s cannot be read: %w", at, err), "check that this user may read /tandem/v1/ there")
		}
		c := Check{Name: "etcd", Status: OK, Detail: fmt.Sprintf("%s answers, and has %d records of parts", at, len(view.Workers))}
		routers := 0
		for _, r := range view.Workers {
			if r.GetRole() == controlv1.Role_ROLE_ROUTER {
				routers++
			}
		}
		if routers == 0 {
			c.Status, c.Detail, c.Advice = Warning, c.Detail+", none of a router", "check that --etcd is that of the routers"
		}
		return []Check{c, Versions("versions in etcd", view.Workers)}
	}
}

// readView reads the records once.
func readView(ctx context.Context, client *membership.Client) (view membership.View, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := client.Watch(ctx, func(v membership.View) {
		if v.Live && !view.Live {
			view = v
			cancel()
		}
	})
	if view.Live {
		return view, nil
	}
	return view, watched
}

// NATS waits for a load report of any worker.
func NATS(cfg signals.Config) Question {
	return func(ctx context.Context) []Check {
		c := Check{Name: "NATS", Status: OK, Detail: signals.WithoutPasswords(cfg.URLs) + " answers, and carries load reports"}
		quiet := slog.New(slog.DiscardHandler)
		failed := func(err error) []Check {
			c.Status, c.Detail, c.Advice = Failed, err.Error(), "check --nats, that it runs, and the certificate or password that it asks for"
			return []Check{c}
		}
		if err := signals.Check(ctx, cfg, quiet); err != nil {
			return failed(err)
		}
		conn, err := signals.Connect(cfg, quiet)
		if err != nil {
			return failed(err)
		}
		defer conn.Close()
		heard := make(chan struct{}, 1)
		end, err := conn.Subscribe(signals.Handlers{Load: func(*controlv1.LoadReport) {
			select {
			case heard <- struct{}{}:
			default:
			}
		}})
		if err != nil {
			return failed(err)
		}
		defer end()
		select {
		case <-heard:
		case <-ctx.Done():
			c.Status, c.Detail = Warning, "no worker reports its load to "+signals.WithoutPasswords(cfg.URLs)
			c.Advice = "check that workers run, that they use this NATS, and that this user may subscribe to tandem.v1.>"
		}
		return []Check{c}
	}
}
