package frontpage_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/cmd/tandem/frontpage"
	"github.com/tandem-serving/tandem/pkg/api"
)

var status = frontpage.Status{
	Name: "tandem", Version: "v1", Ready: true, Models: []frontpage.Model{{ID: "m", ContextTokens: 8}},
	Workers: frontpage.Workers{Prefill: 1, Decode: 2}, GRPC: "127.0.0.1:1", Endpoints: []string{"/v1/models"},
}

func get(t *testing.T, accept string) *httptest.ResponseRecorder {
	t.Helper()
	q := httptest.NewRequest(http.MethodGet, "/", nil)
	if accept != "" {
		q.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	frontpage.Handler(func() frontpage.Status { return status }).ServeHTTP(w, q)
	return w
}

// Browsers get the page, everybody else JSON.
func TestByWhatIsAccepted(t *testing.T) {
	for accept, page := range map[string]bool{
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": true,
		"*/*": false, "": false, "application/json": false,
	} {
		w := get(t, accept)
		if got := strings.HasPrefix(w.Header().Get("Content-Type"), "text/html"); got != page || w.Code != http.StatusOK || w.Header().Get("Vary") != "Accept" {
			t.Errorf("%q: %d %v", accept, w.Code, w.Header())
		}
		if page {
			continue
		}
		var got frontpage.Status
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || !reflect.DeepEqual(got, status) {
			t.Errorf("%q: %v, %+v", accept, err, got)
		}
	}
}

// The page loads nothing from anywhere, and its policy allows its own script and style only.
func TestThePageIsSelfContained(t *testing.T) {
	w := get(t, "text/html")
	page, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	for _, foreign := range []string{"http://", "https://", "<script src", "<link rel=\"stylesheet\"", "@import", "url(", " style=", " onclick=", "innerHTML"} {
		if strings.Contains(page, foreign) {
			t.Errorf("the page has %q", foreign)
		}
	}
	for _, tag := range []string{"script", "style"} {
		all := regexp.MustCompile(`(?s)<`+tag+`[^>]*>(.*?)</`+tag+`>`).FindAllStringSubmatch(page, -1)
		if len(all) != 1 {
			t.Fatalf("%d elements %s", len(all), tag)
		}
		hash := sha256.Sum256([]byte(all[0][1]))
		if want := tag + "-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"; !strings.Contains(policy, want) {
			t.Errorf("the policy lacks %s: %s", want, policy)
		}
	}
	if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("policy %s", policy)
	}
}

// The page names each stage of the budget.
func TestThePageKnowsTheStages(t *testing.T) {
	page := get(t, "text/html").Body.String()
	for stage := range api.NumStages {
		if name := stage.String(); !strings.Contains(page, "\n  "+name+": '") || !strings.Contains(page, "--"+name+":") {
			t.Errorf("the page does not explain or colour %s", name)
		}
	}
}
