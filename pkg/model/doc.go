// Package model reads models from directories in Hugging Face form and writes
// synthetic ones. It knows Llama 2 and 3, Mistral, Qwen2 and 2.5, and dense Qwen3
// (grouped-query attention, rotary embedding with linear, llama3 or yarn scaling,
// biases of Q, K and V, norms of Q and K, sliding windows, tied or separate
// embeddings; bf16, f16 or f32 safetensors, in one file or in shards with an
// index) and refuses everything else with an *Error that names the file and the
// tensor or field and says what to do: nothing is approximated and nothing that
// would change the result is ignored.
//
// Any package may import it; of ours it imports boundedfile, diskspace and parallel. It owns
// the memory mappings of the weight files, from Open to Model.Close. Open and
// Synthesize start goroutines for hashing and generating and wait for them before
// they return; nothing runs in between.
package model
