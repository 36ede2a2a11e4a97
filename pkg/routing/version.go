package routing

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// Model is a model that the router serves.
type Model struct {
	// Name that workers have to have.
	Name string
	// Digest of its weights, if the router has read them: workers that have it count,
	// whatever name they have. Empty: the workers say.
	Digest string
}

// Version is what the tokens of a request depend on beside the request itself: the
// weights and how they are computed with. Within one version they are the same.
type Version struct {
	// Digest of the model's configuration and weights, hexadecimal.
	Digest string
	// Class is the arithmetic class.
	Class string
}

// String names a version for people.
func (v Version) String() string {
	return fmt.Sprintf("%s (%s)", v.Digest[:min(len(v.Digest), shownDigest)], v.Class)
}

// shownDigest is how much of a digest people are shown.
const shownDigest = 12

// Fingerprint is a short name of a version for clients; empty for none.
func (v Version) Fingerprint() string {
	if v == (Version{}) {
		return ""
	}
	sum := sha256.Sum256([]byte(v.Digest + "\n" + v.Class))
	return "fp_" + hex.EncodeToString(sum[:6])
}

func compareVersions(a, b Version) int {
	return cmp.Or(cmp.Compare(a.Digest, b.Digest), cmp.Compare(a.Class, b.Class))
}

// of reports whether a worker has a model, in whatever version.
func (w *worker) of(m Model) bool { return m.servedAs(w.model, w.version.Digest) }

// servedBy reports whether a record is of a worker that serves the model.
func (m Model) servedBy(record *controlv1.WorkerRecord) bool {
	return m.servedAs(record.GetModel(), record.GetModelDigest())
}

func (m Model) servedAs(name, digest string) bool {
	return name == m.Name || m.Digest != "" && digest == m.Digest
}

// VersionsText names versions for people.
func VersionsText(versions []Version) string {
	texts := make([]string, len(versions))
	for i, v := range versions {
		texts[i] = v.String()
	}
	return strings.Join(texts, ", ")
}

// model is one of Config.Models; of another name, one that nobody has.
func (rt *Router) model(name string) Model {
	for _, m := range rt.config.Models {
		if m.Name == name {
			return m
		}
	}
	return Model{Name: name}
}
