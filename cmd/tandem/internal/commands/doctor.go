package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-serving/tandem/cmd/tandem/doctor"
	"github.com/tandem-serving/tandem/cmd/tandem/embedded"
	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/diskspace"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/signals"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// doctorJSON is what `doctor --json` prints.
type doctorJSON struct {
	Checks []doctor.Check `json:"checks"`
}

const (
	// doctorTimeout bounds each check.
	doctorTimeout = 5 * time.Second
	// doctorParts are the parts of the smallest mesh.
	doctorParts = 3
	// routerConnections are the --router-max-connections of gRPC and of HTTP, by default.
	routerConnections = 2 * 2048
)

func newDoctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a mesh and this machine, and say what to do about what is wrong",
		Long: `Prints a line for each check: ok, warning, failed or skipped, what was found, and what to
do. It changes nothing. The exit status is 1 if a check failed.

The router is asked at --addr and --control. If neither is given, and no router answers
at their defaults, only this machine is checked. etcd and NATS are asked if --etcd and
--nats are given, with the same flags and variables as for 'tandem serve'. Without
certificates of their own they are shown those of --ca, --cert and --key.`,
		Example: `  tandem doctor
  tandem doctor --json
  tandem doctor --etcd http://127.0.0.1:2379 --nats nats://127.0.0.1:4222`,
		Args: exactly(),
	}
	d := &examination{operator: addControl(cmd)}
	fs := cmd.Flags()
	fs.StringVar(&d.clients, "addr", defaultAddr, "gRPC address of the router for clients (its --listen): host:port or unix:///path")
	fs.StringVar(&d.dataDir, "data-dir", "", "folder for the data of the etcd of 'tandem up' (default: the one for temporary files)")
	timeout := fs.Duration("timeout", doctorTimeout, "longest time of a check")
	d.membership.RegisterFlags(fs)
	d.signals.RegisterFlags(fs)
	for name, addresses := range map[string]*[]string{"etcd": &d.membership.Endpoints, "nats": &d.signals.URLs} {
		f := fs.Lookup(name)
		*addresses, f.DefValue, f.Usage = nil, "[]", f.Usage+" (default: it is not asked)"
		for _, file := range []string{"ca", "cert"} {
			of := fs.Lookup(name + "-" + file)
			of.Usage = strings.ReplaceAll(of.Usage, "--tls-", "--")
		}
	}
	_ = fs.MarkHidden("lease-ttl") // it exists, but nothing is leased here
	asJSON := addJSON(cmd, "print one JSON object: checks, each with name, status, detail, advice")
	onlyOnCommandLine(cmd, "timeout")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *timeout <= 0 {
			return usageError(cmd, fmt.Sprintf("--timeout: %s is not above 0", *timeout))
		}
		if err := settingsError(cmd, cmp.Or(d.membership.ValidateFlags(), d.signals.ValidateFlags())); err != nil {
			return err
		}
		checks, err := d.run(cmd.Context(), *timeout)
		if err != nil {
			return err
		}
		if err := show(cmd, *asJSON, doctorJSON{checks}, func(w io.Writer, d doctorJSON) error { return printChecks(w, cmd, d.Checks) }); err != nil {
			return err
		}
		if failed := doctor.Count(checks, doctor.Failed); failed > 0 {
			return fmt.Errorf("%d of %s failed", failed, counted(len(checks), "check"))
		}
		return cmd.Context().Err()
	}
	return cmd
}

func printChecks(w io.Writer, cmd *cobra.Command, checks []doctor.Check) error {
	width := 0
	for _, c := range checks {
		width = max(width, len(c.Name))
	}
	for _, c := range checks {
		if _, err := fmt.Fprintf(w, "%-7s  %-*s  %s\n", c.Status, width, c.Name, asCalled(cmd, oneLine(c.String()))); err != nil {
			return err
		}
	}
	return nil
}

// examination is one run of doctor.
type examination struct {
	*operator
	clients, dataDir string
	membership       membership.Config
	signals          signals.Config
}

// run asks everything. The error is one of the command line.
func (d *examination) run(ctx context.Context, timeout time.Duration) ([]doctor.Check, error) {
	as, err := d.open(d.cmd)
	if err != nil {
		return nil, err
	}
	clients, err := dial(d.clients, as)
	if err != nil {
		return nil, usageError(d.cmd, "--addr: "+err.Error())
	}
	defer clients.Close()
	control, err := d.connect()
	if err != nil {
		return nil, err
	}
	defer control.Close()
	files, err := mesh.OpenFilesLimit()
	if err != nil {
		return nil, err
	}
	machine := doctor.Machine{
		Root: os.DirFS("/"), Processors: runtime.NumCPU(), Threads: runtime.GOMAXPROCS(0), Instructions: cpu.InstructionSets(),
		OpenFiles: files, LeastFiles: mesh.LeastOpenFiles(doctorParts), RouterFiles: mesh.LeastOpenFiles(doctorParts) + routerConnections,
		DataDir: d.dataDir, TempDir: os.TempDir(), LeastFree: embedded.StartBytes(cmp.Or(d.dataDir, os.TempDir())), Free: diskspace.Free,
	}
	questions := []doctor.Question{
		func(ctx context.Context) []doctor.Check { return d.askClients(ctx, clients) },
		func(ctx context.Context) []doctor.Check { return d.askControl(ctx, control) },
	}
	if len(d.membership.Endpoints) > 0 {
		d.membership.TLS = d.shown(d.membership.TLS)
		questions = append(questions, doctor.Etcd(d.membership))
	} else {
		questions = append(questions, notAsked("etcd", "etcd"))
	}
	if len(d.signals.URLs) > 0 {
		d.signals.TLS, d.signals.Name = d.shown(d.signals.TLS), "tandem doctor"
		questions = append(questions, doctor.NATS(d.signals))
	} else {
		questions = append(questions, notAsked("NATS", "nats"))
	}
	return doctor.Run(ctx, timeout, append(questions, machine.Check)...), nil
}

// notAsked says of a server that its address is not given.
func notAsked(name, flag string) doctor.Question {
	return func(context.Context) []doctor.Check {
		return []doctor.Check{{Name: name, Status: doctor.Skipped, Detail: "not asked", Advice: "pass --" + flag + " with its address to check it too"}}
	}
}

// shown are the files for the TLS of etcd or NATS: its own, or else those of the command.
func (d *examination) shown(own identity.Config) identity.Config {
	of := d.tls.files()
	own.CAFile = cmp.Or(own.CAFile, of.CAFile)
	if own.CertFile == "" {
		own.CertFile, own.KeyFile = of.CertFile, of.KeyFile
	}
	return own
}

// askClients asks the router where clients do.
func (d *examination) askClients(ctx context.Context, conn *grpc.ClientConn) []doctor.Check {
	health, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	switch {
	case d.nobody("addr", err):
		return []doctor.Check{{
			Name: "router", Status: doctor.Skipped, Detail: "not checked, since no router listens at " + d.clients,
			Advice: "pass --addr if it listens elsewhere",
		}}
	case err != nil:
		return []doctor.Check{failedCheck("router", d.clients, routerFailure(err, d.clients, false))}
	}
	checks := []doctor.Check{{Name: "router", Status: doctor.OK, Detail: d.clients + " answers that it could serve a request now"}}
	if health.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		checks[0].Status, checks[0].Detail = doctor.Failed, d.clients+" answers that it could serve no request now"
		checks[0].Advice = "it starts, stops, or has no worker; see the checks of workers, and its log"
	}
	models, err := inferencev1.NewInferenceClient(conn).ListModels(ctx, &inferencev1.ListModelsRequest{})
	switch {
	case statusOf(err).Code() == codes.Unauthenticated && d.apiKey == "":
		return append(checks, doctor.Check{
			Name: "models", Status: doctor.Skipped, Detail: "not checked, since the router asks clients for a key", Advice: "set TANDEM_API_KEY to one",
		})
	case err != nil:
		return append(checks, failedCheck("models", d.clients, routerFailure(err, d.clients, true)))
	case len(models.GetModels()) == 0:
		return append(checks, doctor.Check{Name: "models", Status: doctor.Failed, Detail: "the router serves no model", Advice: "start it with --model"})
	}
	var names []string
	for _, m := range models.GetModels() {
		names = append(names, m.GetName())
	}
	return append(checks, doctor.Check{Name: "models", Status: doctor.OK, Detail: "served: " + strings.Join(names, ", ")})
}

// askControl asks the router where operators do.
func (d *examination) askControl(ctx context.Context, conn *grpc.ClientConn) []doctor.Check {
	list, err := controlv1.NewControlClient(conn).ListWorkers(ctx, &controlv1.ListWorkersRequest{})
	switch {
	case d.nobody("control", err):
		return []doctor.Check{{
			Name: "control", Status: doctor.Skipped, Detail: "the mesh is not checked, since no router answers operators at " + d.control,
			Advice: "pass --control if one listens elsewhere, or run this command on the router's host",
		}}
	case err != nil:
		return []doctor.Check{failedCheck("control", d.control, d.failure(err, false))}
	}
	return append([]doctor.Check{{Name: "control", Status: doctor.OK, Detail: d.control + " answers, and takes these credentials"}}, doctor.Mesh(list)...)
}

// nobody says whether nobody listens at the address of a flag that was not given.
func (d *examination) nobody(flag string, err error) bool {
	s := statusOf(err)
	return err != nil && !d.cmd.Flags().Changed(flag) && s.Code() == codes.Unavailable && rpc.DialProblem(err) == syscall.ECONNREFUSED.Error()
}

// failedCheck is an error of a call to addr, which says what to do behind its first colon: but for
// one behind the address that it may begin with, and those of a cause in parentheses.
func failedCheck(name, addr string, err error) doctor.Check {
	text, begins := strings.CutPrefix(err.Error(), addr+": ")
	detail, advice, _ := strings.Cut(text, ": ")
	if before, after, is := strings.Cut(text, "): "); is {
		detail, advice = before+")", after
	}
	if begins {
		detail = addr + ": " + detail
	}
	return doctor.Check{Name: name, Status: doctor.Failed, Detail: detail, Advice: advice}
}
