package openai

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// anyOrigin lets every page call.
const anyOrigin = "*"

// corsRead are the headers that pages may read, beside those that browsers always allow.
var corsRead = strings.Join([]string{
	"X-Request-Id", headerSecret, headerIgnored, "Openai-Processing-Ms", "Retry-After", "Retry-After-Ms", headerShouldRetry,
	"X-Ratelimit-Limit-Requests", "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Remaining-Tokens",
	"X-Ratelimit-Reset-Requests", "X-Ratelimit-Reset-Tokens",
}, ", ")

// CheckOrigins refuses what is no origin: browsers compare them letter by letter.
func CheckOrigins(origins []string) error {
	for _, origin := range origins {
		if origin == anyOrigin {
			continue
		}
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || u.Scheme+"://"+u.Host != origin {
			return fmt.Errorf("%q is not an origin such as https://app.example.com, without a path", origin)
		}
	}
	return nil
}

// allowPage tells a browser whether a page of another origin may have the answer. It says whether
// that was all that was asked.
func (h *Handler) allowPage(w http.ResponseWriter, r *http.Request) (preflight bool) {
	origin := r.Header.Get("Origin")
	if len(h.config.Origins) == 0 || origin == "" {
		return false
	}
	header := w.Header()
	header.Add("Vary", "Origin")
	if !slices.Contains(h.config.Origins, origin) && !slices.Contains(h.config.Origins, anyOrigin) {
		return false
	}
	header.Set("Access-Control-Allow-Origin", origin)
	header.Set("Access-Control-Expose-Headers", corsRead)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	header.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE")
	header.Add("Vary", headerRequestHeaders)
	if asked := strings.Join(r.Header.Values(headerRequestHeaders), ","); headerNames.MatchString(asked) {
		header.Set("Access-Control-Allow-Headers", asked)
	}
	header.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// headerRequestHeaders names the headers that a page wants to send. An allowed page may send any: OpenAI's
// library for JavaScript sends a dozen of its own.
const headerRequestHeaders = "Access-Control-Request-Headers"

// headerNames matches names of headers (RFC 9110, section 5.6.2), at most 1,000 bytes of them.
var headerNames = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z, ]{1,1000}$")

// newPages refuses requests of pages of other origins than these. A browser sends some without a
// preflight, and only keeps the answer from the page.
func newPages(origins []string) (*http.CrossOriginProtection, error) {
	pages := http.NewCrossOriginProtection()
	for _, origin := range origins {
		if origin == anyOrigin {
			return nil, nil
		}
		if err := pages.AddTrustedOrigin(origin); err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// checkPage refuses a request, other than to read, of a page that may not call.
func (h *Handler) checkPage(r *http.Request) error {
	if h.pages == nil || h.pages.Check(r) == nil {
		return nil
	}
	return &Failure{
		Status: http.StatusForbidden, Type: "permission_error", Code: "origin_not_allowed",
		Message: fmt.Sprintf("pages of the origin %q may not call: name it in --router-cors-origins", clienterr.Shorten(r.Header.Get("Origin"))),
	}
}
