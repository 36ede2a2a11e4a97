package openai

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// ofResponses finds what serves a path below /responses/; nil if nothing does.
func (h *Handler) ofResponses(rest string) (name string, methods []string, serve func(*exchange) error) {
	if rest == "input_tokens" {
		return routeInputTokens, []string{http.MethodPost}, h.assembled(h.responses, h.countInput)
	}
	escaped, what, _ := strings.Cut(rest, "/")
	switch what {
	case "":
		methods = []string{http.MethodGet, http.MethodHead, http.MethodDelete}
	case "cancel":
		methods = []string{http.MethodPost}
	case "input_items":
		methods = []string{http.MethodGet, http.MethodHead}
	}
	id, err := url.PathUnescape(escaped)
	if err != nil || id == "" || id == "compact" || methods == nil {
		return routeNone, nil, nil
	}
	return routeResponse, methods, func(*exchange) error {
		// None is kept: docs/decisions/0062-responses-are-not-kept.md.
		return notFound("", fmt.Sprintf("Response with id '%s' not found. This server keeps no responses.", clienterr.Shorten(id)), "")
	}
}

// inputTokens is how long a request's prompt is.
type inputTokens struct {
	Object string `json:"object"`
	Tokens int    `json:"input_tokens"`
}

// countInput counts the tokens of what a response would be asked with, once it is truncated.
func (h *Handler) countInput(a *assembly) error {
	e := a.exchange
	if err := h.truncate(e, a.parsed); err != nil {
		return err
	}
	plan, err := h.backend.Plan(e.request.Context(), a.parsed.choices[0])
	if err != nil {
		return rename(err, a.parsed.name)
	}
	e.limits.Count(e.request.Context())
	return e.reply(http.StatusOK, inputTokens{Object: "response.input_tokens", Tokens: len(plan.Prompt)})
}
