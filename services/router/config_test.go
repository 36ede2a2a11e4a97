package router_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/services/router"
)

func TestConfig(t *testing.T) {
	var config router.Config
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.RegisterFlags(flags, "router-")
	if !reflect.DeepEqual(config, router.DefaultConfig()) {
		t.Errorf("defaults are %+v", config)
	}
	if err := config.Validate(); err != nil {
		t.Error(err)
	}
	if err := flags.Parse([]string{"--router-disaggregate-min-tokens=0", "--router-max-queue-wait=5s", "--router-max-attempts=0"}); err != nil {
		t.Fatal(err)
	}
	if config.Routing.DisaggregateMinTokens != 0 || config.Routing.MaxQueueWait != 5*time.Second {
		t.Errorf("%+v", config)
	}
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), "max-attempts") {
		t.Errorf("error %v", err)
	}
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	for want, deps := range map[string]router.Deps{
		"no model":      {},
		"no membership": {Models: []router.Model{{Spec: spec()}}},
		"connect":       {Models: []router.Model{{Spec: spec()}}, Members: &members{}},
	} {
		if _, err := router.New(router.DefaultConfig(), deps); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
