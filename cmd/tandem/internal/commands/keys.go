package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/services/router/control"
)

func newKeysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make, list and revoke the API keys of clients",
		Long: `API keys let clients call routers that run with --auth required. A key belongs to a
tenant, and has scopes and limits. etcd keeps only hashes of keys. Changes are in force at
every router within a second.`,
		Example: `  tandem keys create --tenant acme
  tandem keys list
  tandem keys revoke 0123456789ab`,
		Args: exactly(),
	}
	asGroup(cmd)
	cmd.AddCommand(newKeysCreateCommand(), newKeysListCommand(), newKeysRevokeCommand())
	return cmd
}

// keyBackend is where keys are kept: a router, or etcd itself.
type keyBackend struct {
	*operator
	etcd []string
}

func addKeyBackend(cmd *cobra.Command) *keyBackend {
	k := &keyBackend{operator: addControl(cmd)}
	// Not TANDEM_ETCD: that is set where routers run.
	cmd.Flags().StringSliceVar(&k.etcd, "etcd", nil, "addresses of etcd, to change keys there without a router: makes the first key of a mesh; an https:// address takes --ca, --cert and --key")
	onlyOnCommandLine(cmd, "etcd")
	return k
}

// use calls do with where keys are kept.
func (k *keyBackend) use(do func(ctx context.Context, keys control.KeyStore) error) error {
	if len(k.etcd) == 0 {
		if k.cmd.Flags().Changed("etcd") {
			return usageError(k.cmd, "--etcd is empty: pass an address such as http://127.0.0.1:2379, or leave it out to ask a router")
		}
		return do(k.cmd.Context(), keysOfRouter{k.operator})
	}
	ctx, cancel := context.WithTimeout(k.cmd.Context(), etcdTimeout)
	defer cancel()
	client, err := membership.Connect(ctx, membership.Config{Endpoints: k.etcd, TLS: k.tls.files()}, slog.New(slog.DiscardHandler))
	if err != nil {
		return fmt.Errorf("--etcd: %w", err)
	}
	return cmp.Or(do(ctx, client), client.Close())
}

// asksNobody says of the router that did what it was asked whether it does so for everybody:
// nothing was shown to it.
func (k *keyBackend) asksNobody() bool {
	return len(k.etcd) == 0 && k.apiKey == "" && k.tls.files().CertFile == ""
}

// etcdTimeout bounds what is done with etcd.
const etcdTimeout = 10 * time.Second

type keysOfRouter struct{ router *operator }

func (k keysOfRouter) CreateKey(_ context.Context, key *controlv1.ApiKey) error {
	_, err := ask(k.router, controlv1.NewKeysClient, controlv1.KeysClient.CreateKey, &controlv1.CreateKeyRequest{Key: key})
	return err
}

func (k keysOfRouter) ListKeys(context.Context) ([]*controlv1.ApiKey, error) {
	answer, err := ask(k.router, controlv1.NewKeysClient, controlv1.KeysClient.ListKeys, &controlv1.ListKeysRequest{})
	return answer.GetKeys(), err
}

func (k keysOfRouter) RevokeKey(_ context.Context, id string) (string, error) {
	answer, err := ask(k.router, controlv1.NewKeysClient, controlv1.KeysClient.RevokeKey, &controlv1.RevokeKeyRequest{Id: id})
	return answer.GetId(), err
}

// keyJSON is a key in the output of --json, and createdKeyJSON a new one.
type keyJSON struct {
	ID      string     `json:"id"`
	Tenant  string     `json:"tenant"`
	Scopes  []string   `json:"scopes"`
	Limits  limitsJSON `json:"limits"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires"`
	Revoked *time.Time `json:"revoked"`
}

type createdKeyJSON struct {
	keyJSON
	Key string `json:"key"`
}

// limitsJSON are limits; 0: none.
type limitsJSON struct {
	RequestsPerMinute uint64 `json:"requests_per_minute"`
	TokensPerMinute   uint64 `json:"tokens_per_minute"`
	Concurrency       uint64 `json:"concurrency"`
	PromptTokens      uint64 `json:"prompt_tokens"`
	AnswerTokens      uint64 `json:"answer_tokens"`
	MaxPriority       uint32 `json:"max_priority"`
}

// keysJSON is what `keys list --json` prints, and revokedKeyJSON `keys revoke --json`.
type keysJSON struct {
	Keys []keyJSON `json:"keys"`
}

type revokedKeyJSON struct {
	ID string `json:"id"`
}

func keyOf(k *controlv1.ApiKey) keyJSON {
	l := k.GetLimits()
	return keyJSON{
		ID: k.GetId(), Tenant: k.GetTenant(), Scopes: k.GetScopes(),
		Limits:  limitsJSON{l.GetRequestsPerMinute(), l.GetTokensPerMinute(), l.GetConcurrency(), l.GetPromptTokens(), l.GetAnswerTokens(), l.GetMaxPriority()},
		Created: k.GetCreated().AsTime(), Expires: timeOf(k.GetExpires()), Revoked: timeOf(k.GetRevoked()),
	}
}

// timeOf is a time; nil: it is not set.
func timeOf(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	at := t.AsTime()
	return &at
}

func newKeysCreateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an API key, and print it once",
		Long: `Makes a key for a tenant and prints it. It cannot be shown again: only its hash is kept.

The scope generate lets it call what clients call, operate what operators call (workers,
drain, policy, keys, explain).

Limits are of the tenant, over all routers together: all keys of a tenant share what it
uses.`,
		Example: `  tandem keys create --tenant acme
  tandem keys create --tenant acme --requests-per-minute 600 --tokens-per-minute 100000
  tandem keys create --tenant ops --scope operate --expires 720h`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	tenant := fs.String("tenant", "", "tenant of the key's requests")
	scopes := fs.StringSlice("scope", []string{string(auth.Generate)}, "what the key may be used for: generate, operate; may be repeated")
	expires := fs.Duration("expires", 0, "how long the key is valid; 0: until it is revoked")
	limits := &controlv1.TenantLimits{}
	fs.Uint64Var(&limits.RequestsPerMinute, "requests-per-minute", 0, "most requests in a minute; 0: no limit")
	fs.Uint64Var(&limits.TokensPerMinute, "tokens-per-minute", 0, "most tokens of prompts and answers in a minute; 0: no limit")
	fs.Uint64Var(&limits.Concurrency, "max-concurrency", 0, "most requests at a time; 0: no limit")
	fs.Uint64Var(&limits.PromptTokens, "max-prompt-tokens", 0, "most tokens of a prompt; 0: no limit")
	fs.Uint64Var(&limits.AnswerTokens, "max-answer-tokens", 0, "most tokens of an answer; 0: no limit")
	fs.Uint32Var(&limits.MaxPriority, "max-priority", 0, "highest priority of a request, which goes before all of lower ones; 0: none above that of others")
	oneOf(cmd, "scope", string(auth.Generate), string(auth.Operate))
	asJSON := addJSON(cmd, "print one JSON object: id, key, tenant, scopes, limits, created, expires, revoked")
	fs.VisitAll(func(f *pflag.Flag) { onlyOnCommandLine(cmd, f.Name) }) // what differs from key to key
	backend := addKeyBackend(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *tenant == "":
			return usageError(cmd, "--tenant is missing: say whose requests the key is for")
		case *expires < 0:
			return usageError(cmd, fmt.Sprintf("--expires: %s is negative", *expires))
		}
		key, record := auth.NewKey(time.Now())
		record.Tenant, record.Scopes, record.Limits = *tenant, *scopes, limits
		if *expires > 0 {
			record.Expires = timestamppb.New(time.Now().Add(*expires))
		}
		if field, problem := auth.CheckKey(record); field != "" {
			if field == "scopes" {
				field = "scope"
			}
			return usageError(cmd, fmt.Sprintf("--%s: %s", field, problem))
		}
		if err := backend.use(func(ctx context.Context, keys control.KeyStore) error { return keys.CreateKey(ctx, record) }); err != nil {
			return err
		}
		created := createdKeyJSON{keyOf(record), key}
		err := show(cmd, *asJSON, created, func(w io.Writer, k createdKeyJSON) error {
			_, err := fmt.Fprintf(w, "%s\n", k.Key)
			return err
		})
		if err == nil && !*asJSON {
			fmt.Fprintf(cmd.ErrOrStderr(), "key %s of tenant %s: keep it, it cannot be shown again\n", created.ID, created.Tenant)
			if backend.asksNobody() {
				fmt.Fprintf(cmd.ErrOrStderr(), "the router at %s asks nobody for a key, so nobody checks this one: start routers with --auth required\n", backend.control)
			}
		}
		return err
	}
	return cmd
}

func newKeysListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the API keys",
		Long:    "Lists the keys, without the keys themselves. Those that were revoked in the last 30 days are\namong them.",
		Example: "  tandem keys list\n  tandem keys list --json",
		Args:    exactly(),
	}
	backend := addKeyBackend(cmd)
	asJSON := addJSON(cmd, "print one JSON object {\"keys\":[…]}")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		list := keysJSON{Keys: []keyJSON{}}
		err := backend.use(func(ctx context.Context, keys control.KeyStore) error {
			records, err := keys.ListKeys(ctx)
			for _, r := range records {
				list.Keys = append(list.Keys, keyOf(r))
			}
			return err
		})
		if err != nil {
			return err
		}
		return show(cmd, *asJSON, list, printKeys)
	}
	return cmd
}

func newKeysRevokeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke an API key",
		Long:    "Has every router refuse a key. Its id is what 'tandem keys list' shows, and stands in the key\nafter \"tandem-\". The beginning of an id will do.",
		Example: "  tandem keys revoke 0123456789ab",
		Args:    exactly("the id of a key: 'tandem keys list' shows those there are"),
	}
	backend := addKeyBackend(cmd)
	asJSON := addJSON(cmd, "print one JSON object: id")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var revoked revokedKeyJSON
		err := backend.use(func(ctx context.Context, keys control.KeyStore) (err error) {
			revoked.ID, err = keys.RevokeKey(ctx, args[0])
			return err
		})
		if err != nil {
			return err
		}
		return show(cmd, *asJSON, revoked, func(w io.Writer, r revokedKeyJSON) error {
			_, err := fmt.Fprintf(w, "revoked %s\n", r.ID)
			return err
		})
	}
	return cmd
}

func printKeys(w io.Writer, list keysJSON) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tTENANT\tSCOPES\tLIMITS\tCREATED\tSTATE")
	for _, k := range list.Keys {
		state := "valid"
		switch {
		case k.Revoked != nil:
			state = "revoked " + utc(*k.Revoked)
		case k.Expires != nil && !time.Now().Before(*k.Expires):
			state = "expired " + utc(*k.Expires)
		case k.Expires != nil:
			state = "valid until " + utc(*k.Expires)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Tenant, strings.Join(k.Scopes, ","), k.Limits, utc(k.Created), state)
	}
	return table.Flush()
}

// String names the limits that there are.
func (l limitsJSON) String() string {
	var parts []string
	for _, limit := range []struct {
		n    uint64
		what string
	}{
		{l.RequestsPerMinute, "requests/min"}, {l.TokensPerMinute, "tokens/min"}, {l.Concurrency, "at a time"},
		{l.PromptTokens, "prompt tokens"}, {l.AnswerTokens, "answer tokens"}, {uint64(l.MaxPriority), "highest priority"},
	} {
		if limit.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", limit.n, limit.what))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}
