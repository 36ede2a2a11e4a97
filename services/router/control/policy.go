package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/routingdriver"
)

// GetPolicy is the policy as it was set, and what this router goes by.
func (c *Server) GetPolicy(context.Context, *controlv1.GetPolicyRequest) (*controlv1.GetPolicyResponse, error) {
	set, force := c.policies()
	return &controlv1.GetPolicyResponse{Policy: set.Policy, InForce: force, Revision: set.Revision}, nil
}

// policyWait bounds the wait for this router to go by a policy that etcd has taken.
const policyWait = 5 * time.Second

// SetPolicy changes the policy of every router. This one takes it from etcd like the others, so that
// all go by the one that was set last.
func (c *Server) SetPolicy(ctx context.Context, q *controlv1.SetPolicyRequest) (*controlv1.SetPolicyResponse, error) {
	policy := proto.CloneOf(cmp.Or(q.GetPolicy(), &controlv1.Policy{}))
	if err := checkPolicy(policy); err != nil {
		return nil, err
	}
	if err := c.resolveVersions(policy); err != nil {
		return nil, err
	}
	ifRevision := membership.AnyRevision
	if q.IfRevision != nil {
		ifRevision = max(q.GetIfRevision(), 0)
	}
	revision, err := c.deps.Members.SetPolicy(ctx, policy, ifRevision)
	switch {
	case err == nil:
		c.awaitPolicy(ctx, func(now int64) bool { return now >= revision })
	case ctx.Err() != nil:
		return nil, clienterr.Gone(ctx)
	case errors.Is(err, membership.ErrConflict):
		c.awaitPolicy(ctx, func(now int64) bool { return now != ifRevision }) // who reads it again has to see another
		return nil, rpc.Error(codes.Aborted, api.ReasonPolicyChanged, "the policy was not changed: somebody else has changed it meanwhile; look at it, and try again", 0)
	case status.Code(err) != codes.Unknown:
		return nil, clienterr.Status(err)
	default:
		return nil, rpc.Error(codes.Unavailable, api.ReasonPolicyNotKept, fmt.Sprintf("the policy was not changed: %v", err), 0)
	}
	_, force := c.policies()
	return &controlv1.SetPolicyResponse{Policy: force}, nil
}

// awaitPolicy waits until this router goes by a policy of such a revision, for policyWait at most.
func (c *Server) awaitPolicy(ctx context.Context, such func(revision int64) bool) {
	ctx, cancel := context.WithTimeout(ctx, policyWait)
	defer cancel()
	for {
		set, _, changed := c.deps.Dispatcher.Policies()
		if such(set.Revision) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// policies are the policy as it was set, never nil, and what is in force.
func (c *Server) policies() (set routingdriver.Policy, force *controlv1.Policy) {
	set, versions, _ := c.deps.Dispatcher.Policies()
	force = proto.CloneOf(c.deps.Defaults)
	proto.Merge(force, set.Policy)
	force.Versions = versions
	return set, force
}

// Bounds of a policy, as records.proto states them.
const (
	maxVersions = 16
	maxWeight   = 1000
)

// checkPolicy says which field of a policy may not be as it is.
func checkPolicy(policy *controlv1.Policy) error {
	if policy != nil && policy.TenantMaxRequests != nil && policy.GetTenantMaxRequests() == 0 {
		return rpc.InvalidArgument("policy.tenant_max_requests", "0 refuses every request; give at least 1")
	}
	if policy.GetRouting() != "" {
		if err := routing.CheckPolicy(policy.GetRouting()); err != nil {
			return rpc.InvalidArgument("policy.routing", err.Error())
		}
	}
	return checkVersions(policy.GetVersions())
}

func checkVersions(versions []*controlv1.ModelVersion) error {
	if n := len(versions); n > maxVersions {
		return rpc.InvalidArgument("policy.versions", fmt.Sprintf("%d are more than %d", n, maxVersions))
	}
	for i, v := range versions {
		field := func(name string) string { return fmt.Sprintf("policy.versions[%d].%s", i, name) }
		switch {
		case v.GetModel() == "":
			return rpc.InvalidArgument(field("model"), "is empty: name a model that is served")
		case v.GetModelDigest() == "":
			return rpc.InvalidArgument(field("model_digest"), "is empty: 'tandem workers' shows the digests there are")
		case strings.Trim(v.GetModelDigest(), "0123456789abcdef") != "":
			return rpc.InvalidArgument(field("model_digest"), fmt.Sprintf("%q is not hexadecimal", clienterr.Shorten(v.GetModelDigest())))
		case v.Weight != nil && (v.GetWeight() == 0 || v.GetWeight() > maxWeight):
			return rpc.InvalidArgument(field("weight"), fmt.Sprintf("%d is outside 1 to %d; to send nothing to a version, leave it out", v.GetWeight(), maxWeight))
		}
		for _, other := range versions[:i] {
			if other.GetModel() == v.GetModel() && other.GetModelDigest() == v.GetModelDigest() && other.GetArithmeticClass() == v.GetArithmeticClass() {
				return rpc.InvalidArgument(field("model_digest"), "appears twice")
			}
		}
	}
	return nil
}

// resolveVersions makes whole digests of what may be the beginnings of some, by the
// workers there are. A version that the policy has already needs no worker.
func (c *Server) resolveVersions(policy *controlv1.Policy) error {
	set, _, _ := c.deps.Dispatcher.Policies()
	views, _ := c.deps.Dispatcher.Workers(controlv1.Role_ROLE_UNSPECIFIED)
	for i, v := range policy.GetVersions() {
		field := func(name string) string { return fmt.Sprintf("policy.versions[%d].%s", i, name) }
		served := c.deps.Models.Named(v.GetModel())
		if served == nil {
			return rpc.InvalidArgument(field("model"), fmt.Sprintf("model %q is not served here; there is %s", clienterr.Shorten(v.GetModel()), c.deps.Models.Names()))
		}
		if slices.ContainsFunc(set.GetVersions(), func(o *controlv1.ModelVersion) bool {
			return o.GetModel() == v.GetModel() && o.GetModelDigest() == v.GetModelDigest() && o.GetArithmeticClass() == v.GetArithmeticClass()
		}) {
			continue
		}
		classes := make(map[string][]string) // by digest
		for _, w := range views {
			r := w.GetRecord()
			if r.GetRole() != controlv1.Role_ROLE_KVTRANSFER && (r.GetModel() == v.GetModel() || r.GetModelDigest() == served.Spec.Digest) && strings.HasPrefix(r.GetModelDigest(), v.GetModelDigest()) {
				classes[r.GetModelDigest()] = append(classes[r.GetModelDigest()], r.GetLayout().GetArithmeticClass())
			}
		}
		switch len(classes) {
		case 0:
			return rpc.InvalidArgument(field("model_digest"), fmt.Sprintf("no worker of model %q has weights with digest %s: start one first, see 'tandem workers'", v.GetModel(), clienterr.Shorten(v.GetModelDigest())))
		case 1:
		default:
			return rpc.InvalidArgument(field("model_digest"), fmt.Sprintf("%s is the start of %d different digests: give more of it", v.GetModelDigest(), len(classes)))
		}
		for digest, there := range classes {
			v.ModelDigest = digest
			if class := v.GetArithmeticClass(); class != "" && !slices.Contains(there, class) {
				slices.Sort(there)
				return rpc.InvalidArgument(field("arithmetic_class"), fmt.Sprintf("no worker with this digest has arithmetic class %q; there is %s", clienterr.Shorten(class), strings.Join(slices.Compact(there), ", ")))
			}
		}
	}
	return checkVersions(policy.GetVersions()) // two beginnings may have been of one digest
}

// Usable is a policy from etcd without the fields that SetPolicy would have
// refused; nil stays nil.
func (c *Server) Usable(policy *controlv1.Policy) *controlv1.Policy {
	for err := checkPolicy(policy); err != nil; err = checkPolicy(policy) {
		c.deps.Logger.Warn("policy in etcd is not valid: the field is ignored", "field", rpc.Field(err), "error", err)
		policy = proto.CloneOf(policy)
		switch field := rpc.Field(err); {
		case strings.HasPrefix(field, "policy.versions"):
			policy.Versions = nil
		case field == "policy.routing":
			policy.Routing = nil
		default:
			policy.TenantMaxRequests = nil
		}
	}
	return policy
}
