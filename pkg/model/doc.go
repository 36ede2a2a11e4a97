// Package model reads models from directories in Hugging Face form and writes
// synthetic ones. It knows the Llama architecture (grouped-query attention,
// rotary embedding, tied or separate embeddings; bf16, f16 or f32 safetensors,
// in one file or in shards with an index) and refuses everything else with an
// *Error that names the file and the tensor or field and says what to do:
// nothing is approximated and nothing that would change the result is ignored.
//
// Any package may import it; it imports none of ours. It owns the memory
// mappings of the weight files, from Open to Model.Close. Open and Synthesize
// start goroutines for hashing and generating and wait for them before they
// return; nothing runs in between.
package model
