package records

import (
	"crypto/sha256"
	"crypto/subtle"
)

// maxSecretBytes is more than any secret has: what is longer is not hashed.
const maxSecretBytes = 256

// SecretHash is what is kept of a secret. It is of no use to who reads it: the secret
// has too many bits to be found from it.
type SecretHash [sha256.Size]byte

// HashOf is what is kept of a secret.
func HashOf(secret string) SecretHash { return sha256.Sum256([]byte(secret)) }

// Proves says whether secret is the one that was hashed, in a time that does not
// depend on it. None proves the zero value.
func (h SecretHash) Proves(secret string) bool {
	if len(secret) > maxSecretBytes {
		return false
	}
	hash := HashOf(secret)
	return subtle.ConstantTimeCompare(h[:], hash[:]) == 1
}
