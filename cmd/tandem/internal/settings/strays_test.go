package settings_test

import (
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/internal/settings"
)

func TestStrays(t *testing.T) {
	fs, _ := flagSet(t)
	known := settings.NewVariables("TANDEM_LONG")
	known.Add(fs)
	for _, c := range []struct {
		name, pair, want string
	}{
		{"a typo", "TANDEM_WROKERS=3", "environment variable TANDEM_WROKERS sets nothing (did you mean TANDEM_WORKERS?)"},
		{"a typo in a long name", "TANDEM_ROUTER_MAX_WATING=3", "environment variable TANDEM_ROUTER_MAX_WATING sets nothing (did you mean TANDEM_ROUTER_MAX_WAITING?)"},
		{"like nothing", "TANDEM_COLOUR=red", "environment variable TANDEM_COLOUR sets nothing: no flag has this name"},
		{"of the command line only", "TANDEM_JSON=true", "environment variable TANDEM_JSON sets nothing: --json is taken from the command line only"},
		{"the file of the configuration", "TANDEM_CONFIG=a.yaml", ""},
		{"a flag", "TANDEM_WORKERS=3", ""},
		{"one of others", "TANDEM_LONG=1", ""},
		{"an empty one", "TANDEM_WROKERS=", ""},
		{"of another program", "TANDEMX=1", ""},
		{"a Service's host", "TANDEM_SERVICE_HOST=10.0.0.1", ""},
		{"a Service's port", "TANDEM_SERVICE_PORT=7070", ""},
		{"a Service's named port", "TANDEM_ROUTER_SERVICE_PORT_GRPC=7070", ""},
		{"a Service's URL", "TANDEM_PORT=tcp://10.0.0.1:7070", ""},
		{"a Service's URL of a longer name", "TANDEM_ROUTER_PORT=udp://[fd00::1]:7070", ""},
		{"a Service's URL of a port", "TANDEM_PORT_7070_TCP=tcp://10.0.0.1:7070", ""},
		{"a Service's address", "TANDEM_ROUTER_PORT_7070_TCP_ADDR=10.0.0.1", ""},
		{"a port that no Service has", "TANDEM_PORT=7070", "environment variable TANDEM_PORT sets nothing: no flag has this name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			for _, stray := range known.Strays([]string{"HOME=/", c.pair}) {
				got += stray.String()
			}
			if got != c.want {
				t.Errorf("%s: %q, want %q", c.pair, got, c.want)
			}
		})
	}
}
