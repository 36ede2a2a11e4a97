// Package frontpage serves a router's answer at /. Browsers get a page that shows the mesh and
// its APIs, with a box to try a prompt; other clients get the same as JSON.
//
// Package mesh imports it. It starts no goroutines.
package frontpage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
)

// Status says what runs.
type Status struct {
	// Name is "tandem", for whoever wonders what answers here.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Ready: a request can be served. Unready says why none can.
	Ready   bool    `json:"ready"`
	Unready string  `json:"unready,omitempty"`
	Models  []Model `json:"models"`
	Workers Workers `json:"workers"`
	// GRPC is where the router serves gRPC, as this machine dials it.
	GRPC string `json:"grpc"`
	// Endpoints are the paths that are served beside this one.
	Endpoints []string `json:"endpoints"`
}

// Model is a model that is served, by the names of /v1/models.
type Model struct {
	ID            string `json:"id"`
	ContextTokens int    `json:"max_model_len"`
}

// Workers are how many workers of each role get requests.
type Workers struct {
	Prefill    int `json:"prefill"`
	Decode     int `json:"decode"`
	KVTransfer int `json:"kvtransfer"`
}

//go:embed page.html
var page []byte

// Handler serves the page, and what status returns, which is called for each request that
// wants it.
func Handler(status func() Status) http.Handler {
	policy := contentPolicy(page)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Vary", "Accept")
		header.Set("Cache-Control", "no-cache")
		header.Set("X-Content-Type-Options", "nosniff")
		if !strings.Contains(r.Header.Get("Accept"), "text/html") {
			header.Set("Content-Type", "application/json")
			encoder := json.NewEncoder(w)
			encoder.SetIndent("", "  ")
			_ = encoder.Encode(status()) // nobody to tell
			return
		}
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", policy)
		header.Set("Referrer-Policy", "no-referrer")
		_, _ = w.Write(page)
	})
}

var inline = regexp.MustCompile(`(?s)<(script|style)>(.*?)</(?:script|style)>`)

// contentPolicy allows a page what stands in it, and requests to where it came from: nothing
// that a model writes, or anybody else, is run.
func contentPolicy(page []byte) string {
	sources := map[string]string{}
	for _, element := range inline.FindAllSubmatch(page, -1) {
		hash := sha256.Sum256(element[2])
		sources[string(element[1])] += " 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
	}
	return "default-src 'none'; script-src" + sources["script"] + "; style-src" + sources["style"] +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}
