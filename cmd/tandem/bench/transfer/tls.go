package transfer

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"path/filepath"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/identity/authority"
)

// Names of what FigureTLS compares.
const (
	transportTLS = "tls"
	sealRate     = "aes-128-gcm seal"
	openRate     = "aes-128-gcm open"
)

// security is what both sides of a link with TLS need; nil: they have none.
type security struct{ sender, receiver *identity.Source }

// newSecurity makes certificates, whose files lie in folder.
func newSecurity(folder string) (*security, error) {
	a, err := authority.New()
	if err != nil {
		return nil, err
	}
	source := func(role identity.Role) (*identity.Source, error) {
		own := filepath.Join(folder, string(role))
		if err := a.Issue(own, authority.Request{Identity: identity.Identity{Role: role, Name: string(role)}}, 0o600); err != nil {
			return nil, err
		}
		return identity.Open(authority.Config(own), nil)
	}
	s := new(security)
	if s.sender, err = source(identity.Prefill); err != nil {
		return nil, err
	}
	s.receiver, err = source(identity.Decode)
	return s, err
}

func (s *security) server() credentials.TransportCredentials {
	if s == nil {
		return nil
	}
	return s.receiver.Server(true)
}

func (s *security) client() credentials.TransportCredentials {
	if s == nil {
		return nil
	}
	return s.sender.Peer(identity.Decode)
}

// recordBytes is the payload of one record of TLS.
const recordBytes = 16 << 10

// aes are contenders that encrypt the pages and decrypt what came of it, on one core each, in
// records as TLS has them and with the cipher that both sides choose.
func (b *Bench) aes() (seal, open contender, _ error) {
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		return seal, open, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return seal, open, err
	}
	nonce, header := make([]byte, gcm.NonceSize()), make([]byte, 5)
	from, bytes := b.from.Bytes(), b.plan.Bytes/recordBytes*recordBytes
	sealed := make([]byte, 0, recordBytes+gcm.Overhead())
	opened := make([]byte, 0, recordBytes)
	each := func(name string, do func(record []byte) error) contender {
		return contender{name: name, run: func(ctx context.Context) (int64, time.Duration, error) {
			began := time.Now()
			for at := int64(0); at < bytes; at += recordBytes {
				if ctx.Err() != nil {
					return 0, 0, ctx.Err()
				}
				offset := int(at % int64(len(from)-recordBytes+1))
				if err := do(from[offset : offset+recordBytes]); err != nil {
					return 0, 0, err
				}
			}
			return bytes, time.Since(began), nil
		}}
	}
	gcm.Seal(sealed, nonce, from[:recordBytes], header)
	ready := sealed[:recordBytes+gcm.Overhead()]
	seal = each(sealRate, func(record []byte) error {
		gcm.Seal(sealed[:0], nonce, record, header)
		return nil
	})
	open = each(openRate, func([]byte) error {
		_, err := gcm.Open(opened, nonce, ready, header)
		return err
	})
	return seal, open, nil
}
