package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/client/internal/chunk"
)

const (
	// maxModelsBytes bounds the list of models. OpenAI's is about 20 KiB.
	maxModelsBytes = 4 << 20
	// maxErrorBodyBytes bounds how much of an error body is read.
	maxErrorBodyBytes = 16 << 10
	// namedModels is how many models an error lists.
	namedModels = 10
)

// modelCard is the parsed part of a model in GET /v1/models. max_model_len is from vLLM
// and SGLang, meta from llama.cpp.
type modelCard struct {
	ID      string `json:"id"`
	OwnedBy string `json:"owned_by"`
	MaxLen  int    `json:"max_model_len"`
	Meta    struct {
		ContextTokens  int `json:"n_ctx_train"`
		VocabularySize int `json:"n_vocab"`
	} `json:"meta"`
}

// Describe implements Client with GET /v1/models.
func (t *openAI) Describe(ctx context.Context) (Description, error) {
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	where := t.base.JoinPath("models").String()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
	if err != nil {
		return Description{}, fmt.Errorf("URL %q: %w", where, err)
	}
	request.Header = t.header.Clone()
	request.Host = t.header.Get("Host")
	request.Header.Set("Accept", "application/json")
	response, err := t.client.Do(request)
	if err != nil {
		return Description{}, t.noAnswer(ctx, err)
	}
	defer response.Body.Close()
	d := Description{
		Kind: "openai", Address: t.base.String(), Model: t.cfg.Model, Server: response.Header.Get("Server"),
		VocabularySize: t.cfg.VocabularySize, TextOnly: !t.cfg.TokenIDs,
	}
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		if t.cfg.Model != "" {
			// Gateways without a model list can still be measured.
			return d, nil
		}
		return d, fmt.Errorf("%s does not exist (HTTP %d): check that %s is the URL of an OpenAI server up to /v1; if it lists no models, pass --openai-model",
			where, response.StatusCode, t.base)
	default:
		return d, t.refused(where, response)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxModelsBytes+1))
	if err != nil {
		return d, t.noAnswer(ctx, err)
	}
	var list struct {
		Data []modelCard `json:"data"`
	}
	if err := json.Unmarshal(data, &list); err != nil || list.Data == nil || len(data) > maxModelsBytes {
		return d, fmt.Errorf("%s answered with %s, which is not a list of models: check that it is an OpenAI server",
			where, cmp.Or(response.Header.Get("Content-Type"), "something"))
	}
	model, err := t.choose(list.Data)
	if err != nil {
		return d, err
	}
	t.model.Store(&model.ID)
	d.Model = model.ID
	if model.OwnedBy != "" {
		d.Server = strings.TrimSuffix(fmt.Sprintf("%s (%s)", model.OwnedBy, d.Server), " ()")
	}
	d.ContextTokens = cmp.Or(max(0, model.MaxLen), max(0, model.Meta.ContextTokens))
	d.VocabularySize = cmp.Or(d.VocabularySize, max(0, model.Meta.VocabularySize))
	return d, nil
}

// choose picks the model to request. The result's ID is the name to request.
func (t *openAI) choose(models []modelCard) (modelCard, error) {
	names := make([]string, 0, namedModels+1)
	for _, m := range models {
		// Ollama lists names with a tag and accepts them without.
		if t.cfg.Model == "" || m.ID == t.cfg.Model || m.ID == t.cfg.Model+":latest" {
			return m, nil
		}
		if len(names) == namedModels {
			names = append(names, "…")
			break
		}
		names = append(names, m.ID)
	}
	if len(models) == 0 {
		return modelCard{}, fmt.Errorf("the server at %s lists no model: load one there, or pass --openai-model", t.base)
	}
	return modelCard{}, fmt.Errorf("the server at %s has no model %q: pass --openai-model with one of %s", t.base, t.cfg.Model, strings.Join(names, ", "))
}

// refused is the error for a response with an error status.
func (t *openAI) refused(where string, response *http.Response) error {
	said, _ := failureOf(response)
	switch status := response.StatusCode; {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		if t.cfg.APIKey == "" {
			return fmt.Errorf("the server at %s wants an API key: set OPENAI_API_KEY (HTTP %d: %s)", t.base, status, said)
		}
		return fmt.Errorf("the server at %s rejects the API key: check OPENAI_API_KEY and --openai-key (HTTP %d: %s)", t.base, status, said)
	case status >= 300 && status < 400:
		return fmt.Errorf("%s redirects to %s: pass the server's own URL (HTTP %d)", where, response.Header.Get("Location"), status)
	default:
		return fmt.Errorf("%s answered with HTTP %d: %s", where, status, said)
	}
}

// noAnswer is the error for a request without response.
func (t *openAI) noAnswer(ctx context.Context, err error) error {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, unnamed := errors.AsType[*net.DNSError](err)
	refusal, refused := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case ctx.Err() != nil:
		return fmt.Errorf("no answer from %s within %s: check that it runs and is an OpenAI server", t.base, describeTimeout)
	case untrusted:
		return fmt.Errorf("the certificate of %s is not trusted: install its authority's certificate, or pass --openai-insecure (%w)", t.base, rootCause(err))
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%s does not speak TLS: pass a URL with http:// (%w)", t.base, rootCause(err))
	case unnamed:
		return fmt.Errorf("host of %s not found: check its name (%w)", t.base, rootCause(err))
	case refused && refusal.Op == "dial":
		return fmt.Errorf("cannot reach %s: start the server, or pass its URL with --openai (%w)", t.base, rootCause(err))
	}
	return fmt.Errorf("%s did not answer as an HTTP server: check that it is an OpenAI server, and whether to use http or https (%w)", t.base, rootCause(err))
}

// rootCause strips the method and URL from an error of net/http.
func rootCause(err error) error {
	if next := errors.Unwrap(err); next != nil && strings.HasSuffix(err.Error(), next.Error()) {
		return rootCause(next)
	}
	return err
}

// failureOf is an error response's message, in one shortened line, and its reason.
func failureOf(response *http.Response) (message, reason string) {
	data, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBodyBytes))
	text := string(data)
	if e := chunk.ParseError(data); e != nil {
		text, reason = cmp.Or(e.Message, e.Type), reasonIn(e)
	}
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "\ufffd")
	switch {
	case text != "":
		return shortened(text), reason
	case err != nil:
		return shortened(err.Error()), reason
	}
	return strings.ToLower(http.StatusText(response.StatusCode)), reason
}
