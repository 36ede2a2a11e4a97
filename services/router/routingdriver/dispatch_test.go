package routingdriver_test

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/services/router/routingdriver"
)

// A worker that was forgotten and is asked for again is connected once it answers again: what
// comes late of the connection from before says nothing.
func TestConnectionFromBeforeAWorkerWasForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := routingdriver.New(routing.Config{Models: []routing.Model{{Name: "fable"}}}, routingdriver.Deps{
			Dial:           func(string) (*grpc.ClientConn, error) { return nil, errors.New("nobody") },
			ConnectTimeout: time.Second, Rand: rand.New(rand.NewPCG(1, 2)), Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		record := &controlv1.WorkerRecord{Id: "d1", Epoch: 1, Role: controlv1.Role_ROLE_DECODE, Model: "fable", Addresses: []string{"d1:1"}}
		for _, listed := range [][]*controlv1.WorkerRecord{{record}, nil, {record}} {
			d.Handle(routing.ViewChanged{Workers: listed, Live: true})
		}
		routingdriver.Heard(d, routing.Connected{Worker: routing.Ref{ID: "d1", Epoch: 1}, Connection: 1})
		if views, _ := d.Workers(controlv1.Role_ROLE_UNSPECIFIED); len(views) != 1 || views[0].GetConnected() {
			t.Errorf("%v", views)
		}
	})
}
