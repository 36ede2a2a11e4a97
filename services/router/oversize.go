package router

import inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

// OversizeFields maps each method whose request can be too large for a message
// to the field that makes it so, for the server's error.
func OversizeFields() map[string]string {
	return map[string]string{
		inferencev1.Inference_Generate_FullMethodName:   "prompt or conversation",
		inferencev1.Inference_Tokenize_FullMethodName:   "text",
		inferencev1.Inference_Detokenize_FullMethodName: "token_ids",
	}
}
