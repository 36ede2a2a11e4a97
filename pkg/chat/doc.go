// Package chat turns conversations into prompts, with the chat template that came
// with a model: what transformers' apply_chat_template does, byte for byte.
//
// Routers and commands may import it. It reads files while a template is opened,
// never while one renders, and starts no goroutine. Templates come with models
// that strangers publish: what they cost is bounded, and nothing that they say
// reaches a file. A conversation's text goes into the prompt as it is: text that
// spells a special token becomes that token, as in transformers and vLLM.
package chat
