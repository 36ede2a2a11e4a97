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
	// SquaresOf is how many elements of a row have one sum of squares.
	SquaresOf = C.TDM_SQUARES
	// MostVocabulary is the largest vocabulary that tokens are drawn from.
	MostVocabulary = C.TDM_MOST_VOCABULARY
)

// Address is an address in device memory.
type Address = driver.Address

// The structs of tdm_cuda.h, field by field: see there for what each is.
type (
	// Counts is tdm_counts.
	Counts struct {
		Rows, Thin, Tall, Joins int32
	}
	// Item is tdm_item.
	Item struct {
		Row0, Tokens, Position, Table, First, Last, Slot, _ int32
	}
	// Join is tdm_joint.
	Join struct {
		Row0, Tokens, Slot, Stride, Splits int32
		_                                  [3]int32
	}
	// Deferred is tdm_deferred.
	Deferred struct {
		Weight, Scaled, Squares, Roots Address
		LdScaled, LdSquares            int64
		Width                          int32
		Eps                            float32
	}
	// RootsArgs is tdm_roots_args.
	RootsArgs struct {
		Count Address
		Norm  Deferred
	}
	// EmbedArgs is tdm_embed_args.
	EmbedArgs struct {
		Counts, Tokens, Table, X Address
		LdTable, LdX             int64
		Width, _                 int32
		Norm                     Deferred
	}
	// NormArgs is tdm_norm_args.
	NormArgs struct {
		Count, Index, X, Weight, Out Address
		LdX, LdOut                   int64
		Width                        int32
		Eps                          float32
	}
	// ProductArgs is tdm_product_args.
	ProductArgs struct {
		Count, A, W, Up, Out, Parts, Arranged Address
		LdA, LdW, LdOut                       int64
		K, Outputs                            int32
		Norm                                  Deferred
		Scales, UpScales                      Address
	}
	// QuantizeArgs is tdm_quantize_args.
	QuantizeArgs struct {
		From, To, Scales Address
		Ld               int64
	}
	// HeadsArgs is tdm_heads_args.
	HeadsArgs struct {
		Counts, QKV, Bias, QNorm, KNorm, Cos, Sin, Positions, Slots, Q, Pages Address
		Ld, LdQ, PageBytes, LayerBytes                                        int64
		Heads, KVHeads, Size, BlockTokens                                     int32
		Eps                                                                   float32
		Stride                                                                int32
		FP8, _                                                                int32
	}
	// ProductHeadsArgs is tdm_product_heads_args.
	ProductHeadsArgs struct {
		Product ProductArgs
		Heads   HeadsArgs
	}
	// AttentionArgs is tdm_attention_args.
	AttentionArgs struct {
		Count, Items, Tables, Q, Pages, Out, Results, Sums Address
		LdQ, PageBytes, LayerBytes                         int64
		Heads, KVHeads, Size, BlockTokens, Window          int32
		Scale                                              float32
	}
	// JoinArgs is tdm_join_args.
	JoinArgs struct {
		Count, Joins, Results, Sums, Out Address
		LdQ                              int64
		Heads, KVHeads, Size, _          int32
	}
	// GatherArgs is tdm_gather_args.
	GatherArgs struct {
		Count, Index, From, To Address
		RowBytes               int64
	}
	// SwiGLUArgs is tdm_swiglu_args.
	SwiGLUArgs struct {
		Count, Both, Out Address
		Ld, LdOut        int64
		Up, Width        int32
	}
	// Wish is tdm_wish.
	Wish struct {
		Temperature  float32
		TopK         int32
		TopP, MinP   float32
		Seed, Offset uint64
	}
	// DrawArgs is tdm_draw_args.
	DrawArgs struct {
		Count, Wishes, Logits, Tokens Address
		Ld                            int64
		Vocabulary, _                 int32
	}
)

// Each line is an error of compilation if a struct has another size in C.
const (
	_ = -uint(unsafe.Sizeof(Counts{}) ^ C.sizeof_tdm_counts)
	_ = -uint(unsafe.Sizeof(Item{}) ^ C.sizeof_tdm_item)
	_ = -uint(unsafe.Sizeof(Join{}) ^ C.sizeof_tdm_joint)
	_ = -uint(unsafe.Sizeof(Deferred{}) ^ C.sizeof_tdm_deferred)
	_ = -uint(unsafe.Sizeof(RootsArgs{}) ^ C.sizeof_tdm_roots_args)
	_ = -uint(unsafe.Sizeof(EmbedArgs{}) ^ C.sizeof_tdm_embed_args)
	_ = -uint(unsafe.Sizeof(NormArgs{}) ^ C.sizeof_tdm_norm_args)
	_ = -uint(unsafe.Sizeof(ProductArgs{}) ^ C.sizeof_tdm_product_args)
	_ = -uint(unsafe.Sizeof(QuantizeArgs{}) ^ C.sizeof_tdm_quantize_args)
	_ = -uint(unsafe.Sizeof(HeadsArgs{}) ^ C.sizeof_tdm_heads_args)
	_ = -uint(unsafe.Sizeof(ProductHeadsArgs{}) ^ C.sizeof_tdm_product_heads_args)
	_ = -uint(unsafe.Sizeof(AttentionArgs{}) ^ C.sizeof_tdm_attention_args)
	_ = -uint(unsafe.Sizeof(JoinArgs{}) ^ C.sizeof_tdm_join_args)
	_ = -uint(unsafe.Sizeof(GatherArgs{}) ^ C.sizeof_tdm_gather_args)
	_ = -uint(unsafe.Sizeof(SwiGLUArgs{}) ^ C.sizeof_tdm_swiglu_args)
	_ = -uint(unsafe.Sizeof(Wish{}) ^ C.sizeof_tdm_wish)
	_ = -uint(unsafe.Sizeof(DrawArgs{}) ^ C.sizeof_tdm_draw_args)
)
