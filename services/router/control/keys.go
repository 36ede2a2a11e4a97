package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// KeyStore has the API keys of clients.
type KeyStore interface {
	// CreateKey keeps a key; membership.ErrKeyExists: another one has its id, ErrTooManyKeys: there are too many.
	CreateKey(ctx context.Context, key *controlv1.ApiKey) error
	// ListKeys is all keys, the oldest first.
	ListKeys(ctx context.Context) ([]*controlv1.ApiKey, error)
	// RevokeKey revokes the one key whose id is or begins so, and returns its id;
	// membership.ErrNoKey: there is no such one.
	RevokeKey(ctx context.Context, id string) (string, error)
}

// Keys is the API for the keys of clients. Its methods are safe for concurrent use.
type Keys struct {
	controlv1.UnimplementedKeysServer
	store KeyStore
}

// NewKeys returns the server.
func NewKeys(store KeyStore) *Keys { return &Keys{store: store} }

// CreateKey adds a key that the caller has drawn.
func (k *Keys) CreateKey(ctx context.Context, q *controlv1.CreateKeyRequest) (*controlv1.CreateKeyResponse, error) {
	key := proto.CloneOf(cmp.Or(q.GetKey(), &controlv1.ApiKey{}))
	if field, problem := auth.CheckKey(key); field != "" {
		return nil, rpc.InvalidArgument("key."+field, problem)
	}
	key.Created, key.Revoked = timestamppb.Now(), nil
	err := k.store.CreateKey(ctx, key)
	switch {
	case errors.Is(err, membership.ErrTooManyKeys):
		return nil, rpc.Error(codes.ResourceExhausted, api.ReasonTooManyKeys, err.Error()+": one that is revoked or has expired counts for 30 days more, unless it is removed from etcd", 0)
	case errors.Is(err, membership.ErrKeyExists):
		return nil, rpc.Error(codes.AlreadyExists, api.ReasonKeyExists, fmt.Sprintf("another key has the id %s: draw another one", key.GetId()), 0)
	}
	return &controlv1.CreateKeyResponse{}, notKept(ctx, err)
}

// ListKeys is all keys, without their hashes.
func (k *Keys) ListKeys(ctx context.Context, _ *controlv1.ListKeysRequest) (*controlv1.ListKeysResponse, error) {
	keys, err := k.store.ListKeys(ctx)
	for _, key := range keys {
		key.Sha256 = nil
	}
	return &controlv1.ListKeysResponse{Keys: keys}, notKept(ctx, err)
}

// RevokeKey has every router refuse a key.
func (k *Keys) RevokeKey(ctx context.Context, q *controlv1.RevokeKeyRequest) (*controlv1.RevokeKeyResponse, error) {
	if q.GetId() == "" {
		return nil, rpc.InvalidArgument("id", "is empty: 'tandem keys list' shows the ids there are")
	}
	id, err := k.store.RevokeKey(ctx, q.GetId())
	if errors.Is(err, membership.ErrNoKey) {
		return nil, rpc.Error(codes.NotFound, api.ReasonKeyNotFound, err.Error(), 0)
	}
	return &controlv1.RevokeKeyResponse{Id: id}, notKept(ctx, err)
}

// notKept is the status of an error of the store.
func notKept(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return clienterr.Gone(ctx)
	}
	return rpc.Error(codes.Unavailable, api.ReasonKeyNotKept, fmt.Sprintf("the keys cannot be read or changed: %v", err), 0)
}
