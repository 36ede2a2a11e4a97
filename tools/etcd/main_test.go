package main

import (
	"strings"
	"testing"
)

func TestArguments(t *testing.T) {
	const added = "etcd --data-dir=/checkout/.bin/etcd.data"
	for _, c := range []struct{ name, args, environ, want string }{
		{"none", "etcd", "", added},
		{"others", "etcd --name e --listen-client-urls=http://127.0.0.1:1", "", added + " --name e --listen-client-urls=http://127.0.0.1:1"},
		{"its own", "etcd --name e --data-dir /data", "", "etcd --name e --data-dir /data"},
		{"its own with one hyphen", "etcd -data-dir=/data", "", "etcd -data-dir=/data"},
		{"a file", "etcd --config-file=a.yaml", "", "etcd --config-file=a.yaml"},
		{"a variable", "etcd", "ETCD_DATA_DIR", "etcd"},
		{"a variable for a file", "etcd", "ETCD_CONFIG_FILE", "etcd"},
		{"a subcommand", "etcd grpc-proxy start", "", "etcd grpc-proxy start"},
	} {
		getenv := func(name string) string {
			if name == c.environ {
				return "/there"
			}
			return ""
		}
		got := arguments(strings.Fields(c.args), getenv, func() (string, error) { return "/checkout/.bin/etcd", nil })
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
	}
}
