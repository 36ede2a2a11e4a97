package packedweights

import (
	"fmt"
	"regexp"
)

// Identity is what a file must agree with to be read.
type Identity struct {
	// Digest is the model's: letters and digits.
	Digest string
	// Type is that of the weights: letters and digits.
	Type string
	// Packing is the version of the bytes that packing makes.
	Packing int
	// Shape states the sizes that the parts follow from, for people and against
	// mistakes: the digest covers them.
	Shape string
}

// word is what may stand in a file's name.
var word = regexp.MustCompile(`^[0-9A-Za-z]{1,64}$`)

func (id Identity) check() error {
	if !word.MatchString(id.Digest) || !word.MatchString(id.Type) {
		return fmt.Errorf("model digest %q and type %q must consist of letters and digits", id.Digest, id.Type)
	}
	if n := len(id.text()); n > maxIdentityBytes {
		return fmt.Errorf("an identity of %d bytes is longer than %d", n, maxIdentityBytes)
	}
	return nil
}

// FileName is the name of the weights' file in a folder.
func (id Identity) FileName() string {
	return fmt.Sprintf("%s-%s-%d%s", id.Digest, id.Type, id.Packing, suffix)
}

// text is the identity as it is in a file.
func (id Identity) text() string {
	return fmt.Sprintf("model=%s type=%s packing=%d %s", id.Digest, id.Type, id.Packing, id.Shape)
}
