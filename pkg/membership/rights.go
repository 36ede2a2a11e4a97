package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-serving/tandem/pkg/identity"
)

// allKeys begins all keys of Tandem.
const allKeys = "/tandem/v1/"

// right is what a user of etcd may do with the keys that begin with a prefix.
type right struct {
	prefix string
	kind   clientv3.PermissionType
}

// rights are those of each role's user at etcd, which is called like the role. Workers write
// their own records and read all, to know each other, and the policy; routers read everything, and write
// everything but workers' records. Whoever operates the mesh is etcd's administrator.
func rights() map[identity.Role][]right {
	read, write := clientv3.PermissionType(clientv3.PermRead), clientv3.PermissionType(clientv3.PermReadWrite)
	all := map[identity.Role][]right{
		identity.Router: {
			{allKeys, read}, {workersPrefix + string(identity.Router) + "/", write}, {policyKey, write}, {keysPrefix, write},
		},
	}
	for _, role := range []identity.Role{identity.Prefill, identity.Decode, identity.KVTransfer} {
		all[role] = []right{{workersPrefix, read}, {policyKey, read}, {workersPrefix + string(role) + "/", write}}
	}
	return all
}

// administrator is the role at etcd that may do everything, and the user that etcd asks for.
const administrator = "root"

// SetRights has etcd ask everybody who they are and let them do no more than they need. Users
// are known by the common names of their certificates, which are their roles. It may be called
// again, by an operator, while the mesh runs: another version may need other rights. Each change may
// fail calls to etcd that are under way, with ErrAuthOldRevision.
func SetRights(ctx context.Context, cfg Config, log *slog.Logger) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	etcd, err := newEtcd(cfg.withDefaults(), log)
	if err != nil {
		return err
	}
	defer func() { _ = etcd.Close() }() // nothing waits to be sent
	client := etcd.client
	grants := rights()
	grants[identity.Operator], grants[administrator] = nil, nil
	for role, rights := range grants {
		if err := addUser(ctx, client, role, rights); err != nil {
			return fmt.Errorf("give etcd's user %s its rights: %w", role, err)
		}
	}
	if _, err := client.AuthEnable(ctx); err != nil {
		return fmt.Errorf("turn on authentication at etcd: %w", err)
	}
	return nil
}

// addUser makes a user whose rights are exactly these; one without any is an administrator. It changes
// only what differs, and takes nothing away before all is given: the mesh may run.
func addUser(ctx context.Context, client *clientv3.Client, name identity.Role, rights []right) error {
	user, role := string(name), string(name)
	if len(rights) == 0 {
		role = administrator
	}
	_, err := client.RoleAdd(ctx, role)
	if err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
		return err
	}
	if err := setPermissions(ctx, client, role, rights); err != nil {
		return err
	}
	_, err = client.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
	if err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
		return err
	}
	if _, err := client.UserGrantRole(ctx, user, role); err != nil {
		return err
	}
	has, err := client.UserGet(ctx, user)
	if err != nil {
		return err
	}
	for _, had := range has.Roles {
		if had != role {
			if _, err := client.UserRevokeRole(ctx, user, had); err != nil {
				return err
			}
		}
	}
	return nil
}

// setPermissions has a role have these rights and no others, or whatever it has without any.
func setPermissions(ctx context.Context, client *clientv3.Client, role string, rights []right) error {
	has, err := client.RoleGet(ctx, role)
	if err != nil || len(rights) == 0 {
		return err
	}
	excess := make(map[[2]string]clientv3.PermissionType) // by key and end of its range
	for _, had := range has.Perm {
		excess[[2]string{string(had.Key), string(had.RangeEnd)}] = clientv3.PermissionType(had.PermType)
	}
	for _, r := range rights {
		keys := [2]string{r.prefix, clientv3.GetPrefixRangeEnd(r.prefix)}
		if kind, had := excess[keys]; !had || kind != r.kind {
			if _, err := client.RoleGrantPermission(ctx, role, keys[0], keys[1], r.kind); err != nil {
				return err
			}
		}
		delete(excess, keys)
	}
	for keys := range excess {
		if _, err := client.RoleRevokePermission(ctx, role, keys[0], keys[1]); err != nil {
			return err
		}
	}
	return nil
}
