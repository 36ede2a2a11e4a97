package kernels

/*
#include "tdm_cuda.h"
*/
import "C"

import (
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

// Sizes that the host and the kernels agree on, as tdm_cuda.h has them.
const (
	KBlock      = C.TDM_K
	Tile        = C.TDM_TILE
	SplitTokens = C.TDM_SPLIT
	ThinRows    = C.TDM_THIN_ROWS
	TallRows    = C.TDM_TALL_ROWS
	MostHead    = C.TDM_MOST_HEAD
)

// Address is an address in device memory.
type Address = driver.Address

// The structs of tdm_cuda.h, field by field: see there.
type (
	Counts struct {
		Rows, Sequences, Wanted, Thin, Tall, Joins, LastRows, _ int32
	}
	Item struct {
		Row0, Tokens, Position, Table, First, Last, Slot, _ int32
	}
	Join struct {
		Row0, Tokens, Slot, Stride, Splits int32
		_                                  [3]int32
	}
	EmbedArgs struct {
		Counts, Tokens, Table, X Address
		LdTable, LdX             int64
		Width, _                 int32
	}
	NormArgs struct {
		Count, Index, X, Weight, Out Address
		LdX, LdOut                   int64
		Width                        int32
		Eps                          float32
	}
	ProductArgs struct {
		Count, A, W, Up, Out Address
		LdA, LdW, LdOut      int64
		K, Outputs           int32
	}
	HeadsArgs struct {
		Counts, QKV, Bias, QNorm, KNorm, Cos, Sin, Positions, Slots, Q, Pages Address
		Ld, LdQ, PageBytes, LayerBytes                                        int64
		Heads, KVHeads, Size, BlockTokens                                     int32
		Eps                                                                   float32
		Stride                                                                int32
	}
	AttentionArgs struct {
		Count, Items, Tables, Q, Pages, Out, Results, Sums Address
		LdQ, PageBytes, LayerBytes                         int64
		Heads, KVHeads, Size, BlockTokens, Window          int32
		Scale                                              float32
	}
	JoinArgs struct {
		Count, Joins, Results, Sums, Out Address
		LdQ                              int64
		Heads, KVHeads, Size, _          int32
	}
	GatherArgs struct {
		Count, Index, From, To Address
		RowBytes               int64
	}
	SwiGLUArgs struct {
		Count, Both, Out Address
		Ld, LdOut        int64
		Up, Width        int32
	}
	ArgmaxArgs struct {
		Count, Logits, Tokens Address
		Ld                    int64
		Vocabulary, _         int32
	}
)

// Each line is an error of compilation if a struct has another size in C.
const (
	_ = -uint(unsafe.Sizeof(Counts{}) ^ C.sizeof_tdm_counts)
	_ = -uint(unsafe.Sizeof(Item{}) ^ C.sizeof_tdm_item)
	_ = -uint(unsafe.Sizeof(Join{}) ^ C.sizeof_tdm_joint)
	_ = -uint(unsafe.Sizeof(EmbedArgs{}) ^ C.sizeof_tdm_embed_args)
	_ = -uint(unsafe.Sizeof(NormArgs{}) ^ C.sizeof_tdm_norm_args)
	_ = -uint(unsafe.Sizeof(ProductArgs{}) ^ C.sizeof_tdm_product_args)
	_ = -uint(unsafe.Sizeof(HeadsArgs{}) ^ C.sizeof_tdm_heads_args)
	_ = -uint(unsafe.Sizeof(AttentionArgs{}) ^ C.sizeof_tdm_attention_args)
	_ = -uint(unsafe.Sizeof(JoinArgs{}) ^ C.sizeof_tdm_join_args)
	_ = -uint(unsafe.Sizeof(GatherArgs{}) ^ C.sizeof_tdm_gather_args)
	_ = -uint(unsafe.Sizeof(SwiGLUArgs{}) ^ C.sizeof_tdm_swiglu_args)
	_ = -uint(unsafe.Sizeof(ArgmaxArgs{}) ^ C.sizeof_tdm_argmax_args)
)
