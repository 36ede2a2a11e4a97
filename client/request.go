package client

import inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

// Prompt asks for the continuation of a text. Set further fields as you like.
func Prompt(text string) *inferencev1.GenerateRequest {
	return &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Prompt{Prompt: text}}
}

// TokenIDs asks for the continuation of tokens, which are taken as they are.
func TokenIDs(ids ...uint32) *inferencev1.GenerateRequest {
	return &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: ids}}}
}

// Chat asks for the next message of a conversation.
func Chat(messages ...*inferencev1.Message) *inferencev1.GenerateRequest {
	return &inferencev1.GenerateRequest{Input: &inferencev1.GenerateRequest_Conversation{Conversation: &inferencev1.Conversation{Messages: messages}}}
}

// System is a message that tells the model how to answer.
func System(content string) *inferencev1.Message {
	return &inferencev1.Message{Role: "system", Content: content}
}

// User is a message of who asks.
func User(content string) *inferencev1.Message {
	return &inferencev1.Message{Role: "user", Content: content}
}

// Assistant is an answer that the model gave before.
func Assistant(content string) *inferencev1.Message {
	return &inferencev1.Message{Role: "assistant", Content: content}
}

// JSONObject is the form of any JSON object.
func JSONObject() *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonObject{JsonObject: true}}
}

// JSONSchema is the form of JSON that a schema, a JSON text itself, describes.
func JSONSchema(schema string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_JsonSchema{JsonSchema: schema}}
}

// Regex is the form of texts that a regular expression, in the syntax of RE2, matches as a
// whole.
func Regex(expression string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Regex{Regex: expression}}
}

// Grammar is the form of texts that the rule root of a grammar, in GBNF, describes.
func Grammar(gbnf string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Grammar{Grammar: gbnf}}
}

// Choice is the form of one of some texts.
func Choice(texts ...string) *inferencev1.StructuredOutput {
	return &inferencev1.StructuredOutput{Form: &inferencev1.StructuredOutput_Choice{Choice: &inferencev1.Choice{Texts: texts}}}
}
