package settings

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/spelling"
)

// Variables are the variables that mean something to a program: those that set one of its
// flags, and those that others read.
type Variables struct {
	known       map[string]bool   // without environmentPrefix, which would make all look alike
	commandLine map[string]string // the flags that no variable sets, by the variable's name
}

// NewVariables knows others' variables, by their full names.
func NewVariables(others ...string) *Variables {
	v := &Variables{known: map[string]bool{}, commandLine: map[string]string{}}
	for _, name := range append(others, EnvironmentName("config")) {
		v.known[strings.TrimPrefix(name, environmentPrefix)] = true
	}
	return v
}

// Add adds those of a command's flags.
func (v *Variables) Add(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if name := EnvironmentName(f.Name); commandLineOnly(f) {
			v.commandLine[name] = f.Name
		} else {
			v.known[strings.TrimPrefix(name, environmentPrefix)] = true
		}
	})
}

// Stray is a variable that sets nothing.
type Stray struct {
	Name string
	// Nearest is the variable that may have been meant, CommandLine the flag that only the
	// command line sets; empty if there is none.
	Nearest, CommandLine string
}

// Strays are the variables of environ, by name, that begin with environmentPrefix and mean
// nothing. An empty one is as good as none, and Kubernetes' own do not count.
func (v *Variables) Strays(environ []string) (strays []Stray) {
	found := variables(environ)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		short := strings.TrimPrefix(name, environmentPrefix)
		if value := found[name]; value == "" || v.known[short] || ofKubernetes(name, value) {
			continue
		}
		stray := Stray{Name: name, CommandLine: v.commandLine[name]}
		if nearest, near := spelling.Nearest(short, maps.Keys(v.known)); near {
			stray.Nearest = environmentPrefix + nearest
		}
		strays = append(strays, stray)
	}
	return strays
}

func (s Stray) String() string {
	switch {
	case s.CommandLine != "":
		return fmt.Sprintf("environment variable %s sets nothing: --%s is taken from the command line only", s.Name, s.CommandLine)
	case s.Nearest != "":
		return fmt.Sprintf("environment variable %s sets nothing (did you mean %s?)", s.Name, s.Nearest)
	}
	return fmt.Sprintf("environment variable %s sets nothing: no flag has this name", s.Name)
}

// Every pod gets variables for each Service of its namespace: of one called tandem or
// tandem-router TANDEM_SERVICE_HOST, TANDEM_ROUTER_SERVICE_PORT_GRPC,
// TANDEM_PORT_7070_TCP_ADDR and, with a URL in it, TANDEM_ROUTER_PORT.
var (
	kubernetesService = regexp.MustCompile(`^TANDEM_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)$`)
	kubernetesURL     = regexp.MustCompile(`^(tcp|udp|sctp)://`)
)

func ofKubernetes(name, value string) bool {
	return kubernetesService.MatchString(name) || strings.HasSuffix(name, "_PORT") && kubernetesURL.MatchString(value)
}
