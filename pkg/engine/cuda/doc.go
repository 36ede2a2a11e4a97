// Package cuda runs models on NVIDIA GPUs. It opens the driver's library at run time,
// so that one binary serves with and without a GPU, and its kernels are PTX that is
// part of the binary. See docs/gpu.md.
//
// What it computes is defined bit for bit (docs/decisions/0014-cuda-arithmetic.md): a
// result depends neither on the batch nor on how a prompt is cut into chunks. It is
// another arithmetic class than the CPU engine's, so that the two pass no KV to each
// other. With Config.Products CublasLt another library computes large products, faster
// and not so defined (docs/decisions/0016-cublaslt-products.md): a class of its own again.
//
// Only engines, cmd/tandem and tests import it. A Health has a goroutine until its Close; nothing
// else leaves any behind.
package cuda
