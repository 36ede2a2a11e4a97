package openai

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// anyOrigin lets every page call.
const anyOrigin = "*"

// Headers that pages may send and read, beside those that browsers always allow.
var (
	corsSent = strings.Join([]string{"Authorization", "Content-Type", "X-Request-Id", headerSLO, secretHeader, headerLastEventID, "Traceparent", "Tracestate"}, ", ")
	corsRead = strings.Join([]string{
		"X-Request-Id", secretHeader, ignoredHeader, "Openai-Processing-Ms", "Retry-After", "Retry-After-Ms",
		"X-Ratelimit-Limit-Requests", "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Remaining-Tokens",
		"X-Ratelimit-Reset-Requests", "X-Ratelimit-Reset-Tokens",
	}, ", ")
)

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
	header.Set("Access-Control-Allow-Methods", "GET, HEAD, POST")
	header.Set("Access-Control-Allow-Headers", corsSent)
	header.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}
