package rpc

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/identity"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// callers says who may call a service, or a method that has a line of its own, where
// certificates say who calls. What has no line nobody may call.
var callers = map[string][]identity.Role{
	workerv1.Worker_ServiceDesc.ServiceName:         {identity.Router},
	workerv1.Prefill_ServiceDesc.ServiceName:        {identity.Router},
	workerv1.Decode_ServiceDesc.ServiceName:         {identity.Router},
	workerv1.Worker_Identify_FullMethodName:         {identity.Router, identity.Operator},
	kvtransferv1.KVTransfer_ServiceDesc.ServiceName: {identity.Prefill, identity.KVTransfer},
	kvtransferv1.BlockStore_ServiceDesc.ServiceName: {identity.Prefill},
	controlv1.Control_ServiceDesc.ServiceName:       {identity.Operator},
	controlv1.Keys_ServiceDesc.ServiceName:          {identity.Operator},
}

// public are the services that all may call who come in, with a certificate or without.
var public = []string{
	inferencev1.Inference_ServiceDesc.ServiceName,
	controlv1.Requests_ServiceDesc.ServiceName,
	healthv1.Health_ServiceDesc.ServiceName,
	reflectionv1.ServerReflection_ServiceDesc.ServiceName,
	reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName,
}

// Callers are the roles that may call a method, like "/tandem.worker.v1.Decode/Run"; all may
// call a public one.
func Callers(fullMethod string) (roles []identity.Role, all bool) {
	service, _, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	if slices.Contains(public, service) {
		return nil, true
	}
	if roles, ok := callers[fullMethod]; ok {
		return roles, false
	}
	return callers[service], false
}

// checkRole refuses a call by whoever may not make it. With keys, operators may show one instead of
// a certificate: it is asked for afterwards.
func checkRole(keys bool) check {
	return func(ctx context.Context, fullMethod string) (context.Context, error) {
		roles, public := Callers(fullMethod)
		if public {
			return ctx, nil
		}
		caller, known := identity.FromContext(ctx)
		switch {
		case !known && keys && slices.Equal(roles, []identity.Role{identity.Operator}):
		case !known:
			return ctx, Errorf(codes.Unauthenticated, api.ReasonNoCertificate,
				"%s is for %s: show a certificate with that role", fullMethod, either(roles))
		case !slices.Contains(roles, caller.Role):
			return ctx, Errorf(codes.PermissionDenied, api.ReasonWrongRole,
				"%s is for %s, but the certificate is that of %s", fullMethod, either(roles), caller)
		}
		return ctx, nil
	}
}

func either(roles []identity.Role) string {
	if len(roles) == 0 {
		return "nobody"
	}
	words := make([]string, len(roles))
	for i, role := range roles {
		words[i] = string(role)
	}
	return strings.Join(words, " or ")
}
