// Package openai serves OpenAI's HTTP API: models, completions, chats, responses and
// embeddings, with the extensions of vLLM that programs rely on. It only translates: its
// Backend, the router, admits requests and serves them. docs/openai.md lists each field.
//
// The router imports it. A Handler starts no goroutine for a request with one choice. For
// several choices it starts one each, and waits for them before ServeHTTP returns.
package openai
