package control

import (
	"context"
	"log/slog"
	"path"

	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// maxAuditBytes bounds what a line says of a call's request.
const maxAuditBytes = 1024

// Audit is an rpc.ServerConfig's Audit for the server of operators: one line for each call, with
// who made it, what was asked and what came of it.
func Audit(log *slog.Logger) func(ctx context.Context, fullMethod string, request any, err error) {
	return func(ctx context.Context, fullMethod string, request any, err error) {
		who, from := "anybody", "" // nobody is asked who they are
		caller := auth.FromContext(ctx)
		certificate, shown := identity.FromContext(ctx)
		switch {
		case caller != nil:
			who = caller.Name
		case shown:
			who = certificate.String()
		case rpc.Refused(err):
			who = "nobody"
		}
		if p, ok := peer.FromContext(ctx); ok {
			from = p.Addr.String()
		}
		log.LogAttrs(ctx, slog.LevelInfo, "control call",
			slog.String("method", path.Base(fullMethod)), slog.String("caller", clienterr.Shorten(who)), slog.String("from", from),
			slog.String("request", described(request)), slog.String("status", rpc.CodeName(status.Code(err))), slog.String("request_id", rpc.RequestID(ctx)))
	}
}

// described is what was asked, without the hashes of keys.
func described(request any) string {
	message, is := request.(proto.Message)
	if !is {
		return ""
	}
	if create, is := message.(*controlv1.CreateKeyRequest); is && create.GetKey() != nil {
		create = proto.CloneOf(create)
		create.Key.Sha256 = nil
		message = create
	}
	text, err := protojson.Marshal(message)
	if err != nil {
		return "malformed"
	}
	return string(text[:min(len(text), maxAuditBytes)])
}
