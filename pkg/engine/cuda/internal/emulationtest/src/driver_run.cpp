// Running: which operation is next, and what it does.

#include "driver.h"

#include <cstring>

using namespace fake;

namespace {

CUresult run_copy(CUcontext context, const Op &op) {
	std::string why;
	if (!covers_op(op, &why))
		return lose(context, CUDA_ERROR_ILLEGAL_ADDRESS, "memory was freed before a copy or fill of it ran");
	if (op.kind == Kind::fill) {
		std::memset(reinterpret_cast<void *>(op.to), op.value, op.bytes);
		return CUDA_SUCCESS;
	}
	for (size_t row = 0; row < op.rows; row++)
		std::memcpy(reinterpret_cast<void *>(op.to + row * op.to_pitch), reinterpret_cast<void *>(op.from + row * op.from_pitch), op.bytes);
	Copied &copied = state().copied;
	(op.kind == Kind::copy_in ? copied.in : op.kind == Kind::copy_out ? copied.out : copied.within) += (long long)(op.rows * op.bytes);
	copied.copies++;
	return CUDA_SUCCESS;
}

CUresult run_launch(CUcontext context, const Op &op) {
	std::string why;
	if (run_kernel(op.kernel, op.grid, op.block, op.shared, op.arguments->data(), &why) != 0)
		return lose(context, CUDA_ERROR_LAUNCH_FAILED, "kernel " + op.kernel.name + ": " + why);
	if (!zones_hold(context, &why))
		return lose(context, CUDA_ERROR_ILLEGAL_ADDRESS, "kernel " + op.kernel.name + " " + why);
	return CUDA_SUCCESS;
}

CUresult run(CUcontext context, const Op &op) {
	switch (op.kind) {
	case Kind::launch:
		return run_launch(context, op);
	case Kind::record:
		op.mark->reached = true;
		op.mark->when = std::chrono::steady_clock::now();
		return CUDA_SUCCESS;
	case Kind::work:
		return op.work(context);
	default:
		return run_copy(context, op);
	}
}

} // namespace

bool fake::run_one() {
	State &s = state();
	std::vector<CUstream> able;
	for (CUstream stream : s.streams)
		if (stream->context->lost == CUDA_SUCCESS && !stream->queue.empty())
			able.push_back(stream);
	if (able.empty())
		return false;
	CUstream stream = able[s.random() % able.size()];
	const Op op = stream->queue.front();
	stream->queue.pop_front();
	if (run(stream->context, op) != CUDA_SUCCESS)
		for (CUstream other : s.streams)
			if (other->context == stream->context)
				other->queue.clear();
	return true;
}

CUresult fake::run_all(CUcontext context) {
	return run_until(context, [context] {
		for (CUstream stream : state().streams)
			if (stream->context == context && !stream->queue.empty())
				return false;
		return true;
	});
}
