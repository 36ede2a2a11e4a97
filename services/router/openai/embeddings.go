package openai

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// embedding is what a request for embeddings says beside its inputs.
type embedding struct {
	base64     bool
	dimensions int // 0: as many as there are
}

// parseEmbeddings translates a request for embeddings: one GenerateRequest for each input.
func parseEmbeddings(f *fields) (*parsedRequest, error) {
	c := &parsedRequest{route: RouteEmbeddings, embedding: new(embedding)}
	q := &inferencev1.GenerateRequest{Model: f.text("model")}
	if p := f.integerIn("priority", -100, 100); p != nil {
		q.Priority = int32(-*p) // as of completions
	}
	tier(f, q)
	if special, given := f.boolean("add_special_tokens"); given {
		q.NoSpecialTokens = !special
	}
	switch format := f.text("encoding_format"); format {
	case "", "float":
	case "base64":
		c.embedding.base64 = true
	default:
		f.wrong(unsupported("encoding_format", fmt.Sprintf("%q is not supported: there are float and base64", clienterr.Shorten(format))))
	}
	if d := f.integerIn("dimensions", 1, math.MaxInt32); d != nil {
		c.embedding.dimensions = int(*d)
	}
	f.notSupported("is not supported in this version; leave it out", "truncate_prompt_tokens", "messages")
	if c.choices = prompts(f, q, "input", serving.MaxInputs); f.bad != nil {
		return nil, f.bad
	}
	return c, nil
}

// embeddingList and embeddingObject are OpenAI's objects.
type embeddingList struct {
	Object string            `json:"object"`
	Data   []embeddingObject `json:"data"`
	Model  string            `json:"model"`
	Usage  embeddingUsage    `json:"usage"`
}

type embeddingObject struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding"` // []float32, or a string
}

type embeddingUsage struct {
	PromptTokens int64 `json:"prompt_tokens"`
	TotalTokens  int64 `json:"total_tokens"`
}

// embed serves a request for embeddings.
func (h *Handler) embed(a *assembly) error {
	e, c := a.exchange, a.parsed
	first := c.choices[0]
	if m, err := h.config.Catalog.Model(first.GetModel()); err == nil { // else the backend says that there is none
		if err := checkDimensions(m, c.embedding.dimensions); err != nil {
			return err
		}
		if err := h.takeVectors(a.memory, m, len(c.choices)); err != nil {
			return err
		}
	}
	q := &inferencev1.EmbedRequest{Model: first.GetModel(), NoSpecialTokens: first.GetNoSpecialTokens(), Priority: first.GetPriority(), Slo: first.GetSlo()}
	for _, choice := range c.choices {
		input := &inferencev1.EmbedInput{Input: &inferencev1.EmbedInput_Text{Text: choice.GetPrompt()}}
		if ids := choice.GetTokenIds(); ids != nil {
			input.Input = &inferencev1.EmbedInput_TokenIds{TokenIds: ids}
		}
		q.Inputs = append(q.Inputs, input)
	}
	c.secret = cmp.Or(c.secret, rpc.NewID())
	var caller serving.Caller
	c.describe(&caller)
	r, err := h.backend.Embed(e.request.Context(), caller, q)
	if err != nil {
		return rename(err, embeddingName)
	}
	e.secret = c.secret
	list := embeddingList{Object: "list", Model: r.GetModel(), Data: make([]embeddingObject, 0, len(r.GetEmbeddings()))}
	for i, made := range r.GetEmbeddings() {
		object := embeddingObject{Object: "embedding", Index: i, Embedding: made.GetValues()}
		if c.embedding.base64 {
			object.Embedding = encoded(made.GetValues())
		}
		list.Data = append(list.Data, object)
		list.Usage.PromptTokens += int64(made.GetTokens())
	}
	list.Usage.TotalTokens = list.Usage.PromptTokens
	return e.reply(http.StatusOK, list)
}

// numberBytes is about what a number of a vector takes until it is written: as such and as JSON.
const numberBytes = 32

// takeVectors takes the memory for so many vectors of a model, before they are computed.
func (h *Handler) takeVectors(memory *memoryShare, m *inferencev1.Model, vectors int) error {
	each := max(numberBytes*int64(m.GetHiddenSize()), 1)
	if most := h.mostOfOne() / each; int64(vectors) > most {
		return invalid("input", fmt.Sprintf("%d embeddings of %d numbers each do not fit into this server's memory for answers: send at most %d texts at a time", vectors, m.GetHiddenSize(), most))
	}
	if !memory.take(each * int64(vectors)) {
		return full()
	}
	return nil
}

// checkDimensions refuses a length, unless it is 0 or that of a model's vectors: a part of one means
// nothing in a model that was not trained for it.
func checkDimensions(m *inferencev1.Model, wanted int) error {
	if have := int(m.GetHiddenSize()); wanted > 0 && wanted != have {
		return unsupported("dimensions", fmt.Sprintf("%d is not supported: embeddings of %s have %d; leave it out", wanted, m.GetName(), have))
	}
	return nil
}

// encoded is a vector in base64: float32 each, little-endian.
func encoded(values []float32) string {
	b := make([]byte, 0, 4*len(values))
	for _, x := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}
