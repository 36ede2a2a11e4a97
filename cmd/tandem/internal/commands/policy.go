package commands

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// policyJSON is what `policy --json` prints. A field of Policy that is null was not
// set: the routers' configuration decides, which InForce shows.
type policyJSON struct {
	Policy  policyFieldsJSON `json:"policy"`
	InForce policyFieldsJSON `json:"in_force"`
}

type policyFieldsJSON struct {
	DisaggregateMinTokens *uint32       `json:"disaggregate_min_tokens"`
	TenantMaxRequests     *uint32       `json:"tenant_max_requests"`
	Routing               *string       `json:"routing"`
	Versions              []versionJSON `json:"versions"`
}

// versionJSON is a version of a model. Without ArithmeticClass it is the one that most
// workers with the digest have.
type versionJSON struct {
	Model           string `json:"model"`
	ModelDigest     string `json:"model_digest"`
	ArithmeticClass string `json:"arithmetic_class"`
	Weight          uint32 `json:"weight"`
}

func newPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show or change the policy of the routers: how they choose workers, model versions and limits",
		Long: `Prints the policy: what operators have set, and what the router uses. All routers
share one policy, in etcd.

A version of a model is named by the digest of its weights and, where workers with the
same weights compute differently, by their arithmetic class. If the policy names no
version, the router serves the one that most workers of the model had when the router
started. Workers with other versions get no requests.`,
		Example: `  tandem policy
  tandem policy set --version fable=0123456789ab --version fable=fedcba987654:9
  tandem policy reset`,
		Args: exactly(),
	}
	router := addControl(cmd)
	asJSON := addJSON(cmd, "print one JSON object: policy, in_force")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		response, err := ask(router, controlv1.NewControlClient, controlv1.ControlClient.GetPolicy, &controlv1.GetPolicyRequest{})
		if err != nil {
			return err
		}
		return showPolicy(cmd, response, *asJSON)
	}
	cmd.AddCommand(newPolicySetCommand(), newPolicyResetCommand())
	return cmd
}

func newPolicySetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change parts of the policy of all routers",
		Long: `Changes what its flags name, and nothing else. The versions given for a model replace
all versions that the policy had for it. Several versions share the model's requests
by weight, which is 1 by default. A digest may be shortened to its beginning, as
'tandem workers' shows it.`,
		Example: `  tandem policy set --version fable=0123456789ab --version fable=fedcba987654/cpu/bf16/3:9
  tandem policy set --tenant-max-requests 64
  tandem policy set --routing least-loaded`,
		Args: exactly(),
	}
	router := addControl(cmd)
	versions := cmd.Flags().StringArray("version", nil, "version of a model to serve: MODEL=DIGEST[/ARITHMETIC-CLASS][:WEIGHT]; may be repeated")
	threshold := cmd.Flags().Uint32("disaggregate-min-tokens", 0, "in mode auto, never send prompts with fewer uncached tokens from one worker to another: one worker does all")
	name := cmd.Flags().String("routing", "", "how routers choose workers: "+strings.Join(routing.Policies(), ", "))
	oneOf(cmd, "routing", routing.Policies()...)
	tenant := cmd.Flags().Uint32("tenant-max-requests", 0, "most requests of one tenant at a time")
	asJSON := addJSON(cmd, "print one JSON object: policy, in_force")
	onlyOnCommandLine(cmd, "version", "routing", "disaggregate-min-tokens", "tenant-max-requests")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var named []*controlv1.ModelVersion
		for _, text := range *versions {
			v, err := parseVersion(text)
			if err != nil {
				return usageError(cmd, "--version: "+err.Error())
			}
			named = append(named, v)
		}
		flags := cmd.Flags()
		if len(named) == 0 && !flags.Changed("routing") && !flags.Changed("disaggregate-min-tokens") && !flags.Changed("tenant-max-requests") {
			return usageError(cmd, "nothing to set: pass --routing, --version, --disaggregate-min-tokens or --tenant-max-requests")
		}
		if flags.Changed("routing") {
			if err := routing.CheckPolicy(*name); err != nil {
				return usageError(cmd, "--routing: "+err.Error())
			}
		}
		if flags.Changed("tenant-max-requests") && *tenant == 0 {
			return usageError(cmd, "--tenant-max-requests: 0 would refuse every request: pass at least 1")
		}
		return router.changePolicy(cmd, *asJSON, func(policy *controlv1.Policy) {
			if flags.Changed("routing") {
				policy.Routing = name
			}
			if flags.Changed("disaggregate-min-tokens") {
				policy.DisaggregateMinTokens = threshold
			}
			if flags.Changed("tenant-max-requests") {
				policy.TenantMaxRequests = tenant
			}
			policy.Versions = append(slices.DeleteFunc(policy.Versions, func(old *controlv1.ModelVersion) bool {
				return slices.ContainsFunc(named, func(v *controlv1.ModelVersion) bool { return v.GetModel() == old.GetModel() })
			}), named...)
		})
	}
	return cmd
}

func newPolicyResetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reset",
		Short: "Remove the policy, so that routers use their configuration again",
		Long: `Removes the whole policy. Each model is then served in the version that most of its
workers have at that moment.`,
		Example: `  tandem policy reset`,
		Args:    exactly(),
	}
	router := addControl(cmd)
	asJSON := addJSON(cmd, "print one JSON object: policy, in_force")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return router.changePolicy(cmd, *asJSON, func(policy *controlv1.Policy) { proto.Reset(policy) })
	}
	return cmd
}

// parseVersion reads MODEL=DIGEST[/CLASS][:WEIGHT].
func parseVersion(text string) (*controlv1.ModelVersion, error) {
	const form = "write MODEL=DIGEST, MODEL=DIGEST/CLASS or MODEL=DIGEST:WEIGHT"
	i := strings.LastIndex(text, "=")
	if i <= 0 {
		return nil, fmt.Errorf("%q names no model: %s", text, form)
	}
	v := &controlv1.ModelVersion{Model: text[:i]}
	rest := text[i+1:]
	if j := strings.LastIndex(rest, ":"); j >= 0 {
		weight, err := strconv.ParseUint(rest[j+1:], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a weight: %s", rest[j+1:], form)
		}
		if weight == 0 {
			return nil, fmt.Errorf("%q has the weight 0: to send nothing to a version, leave it out", text)
		}
		v.Weight, rest = proto.Uint32(uint32(weight)), rest[:j]
	}
	if v.ModelDigest, v.ArithmeticClass, _ = strings.Cut(rest, "/"); v.ModelDigest == "" {
		return nil, fmt.Errorf("%q names no digest: %s", text, form)
	}
	if strings.Trim(v.GetModelDigest(), "0123456789abcdef") != "" {
		return nil, fmt.Errorf("%q is not the beginning of a digest: 'tandem workers' shows the digests there are", v.GetModelDigest())
	}
	return v, nil
}

func (o *operator) changePolicy(cmd *cobra.Command, asJSON bool, change func(*controlv1.Policy)) error {
	conn, err := o.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := controlv1.NewControlClient(conn)
	set := func() error {
		response, err := client.GetPolicy(cmd.Context(), &controlv1.GetPolicyRequest{})
		if err != nil {
			return err
		}
		policy := response.GetPolicy()
		if policy == nil {
			policy = &controlv1.Policy{}
		}
		change(policy)
		_, err = client.SetPolicy(cmd.Context(), &controlv1.SetPolicyRequest{Policy: policy, IfRevision: &response.Revision})
		return err
	}
	if err = set(); rpc.Reason(err) == api.ReasonPolicyChanged { // between the two
		err = set()
	}
	if err != nil {
		return o.failure(err, false)
	}
	response, err := client.GetPolicy(cmd.Context(), &controlv1.GetPolicyRequest{})
	if err != nil {
		return o.failure(err, true)
	}
	return showPolicy(cmd, response, asJSON)
}

func showPolicy(cmd *cobra.Command, response *controlv1.GetPolicyResponse, asJSON bool) error {
	return show(cmd, asJSON, policyJSON{policyFields(response.GetPolicy()), policyFields(response.GetInForce())}, printPolicy)
}

func printPolicy(w io.Writer, p policyJSON) error {
	origin := func(set bool) string {
		if set {
			return "policy"
		}
		return "configuration of the router"
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WHAT\tIN FORCE\tBY")
	row := func(name string, set, force *uint32) {
		if force != nil {
			fmt.Fprintf(table, "%s\t%d\t%s\n", name, *force, origin(set != nil))
		}
	}
	if p.InForce.Routing != nil {
		fmt.Fprintf(table, "routing\t%s\t%s\n", *p.InForce.Routing, origin(p.Policy.Routing != nil))
	}
	row("disaggregate-min-tokens", p.Policy.DisaggregateMinTokens, p.InForce.DisaggregateMinTokens)
	row("tenant-max-requests", p.Policy.TenantMaxRequests, p.InForce.TenantMaxRequests)
	for _, v := range p.InForce.Versions {
		by := "most of its workers"
		if slices.ContainsFunc(p.Policy.Versions, func(o versionJSON) bool { return o.Model == v.Model }) {
			by = "policy"
		}
		fmt.Fprintf(table, "version\t%s=%s/%s:%d\t%s\n", v.Model, shortDigest(v.ModelDigest), v.ArithmeticClass, v.Weight, by)
	}
	return table.Flush()
}

func policyFields(p *controlv1.Policy) policyFieldsJSON {
	out := policyFieldsJSON{Versions: []versionJSON{}}
	if p != nil {
		out.DisaggregateMinTokens, out.TenantMaxRequests, out.Routing = p.DisaggregateMinTokens, p.TenantMaxRequests, p.Routing
	}
	for _, v := range p.GetVersions() {
		weight := uint32(1)
		if v.Weight != nil {
			weight = v.GetWeight()
		}
		out.Versions = append(out.Versions, versionJSON{v.GetModel(), v.GetModelDigest(), v.GetArithmeticClass(), weight})
	}
	return out
}
