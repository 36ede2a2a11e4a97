// Package openai serves OpenAI's HTTP API: models, completions, chats and
// responses, with the extensions of vLLM that programs rely on. It translates
// and owns no request: what a request means, and whether it is let in, is for the
// Backend, which is the router.
//
// The router imports it.
//
// A Handler starts no goroutine for a request with one choice. For several it
// starts one each, which have ended before its ServeHTTP returns. docs/openai.md
// says what is done with each field.
package openai
