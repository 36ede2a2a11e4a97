package cuda

// xids is what is known of NVIDIA's catalogue of Xids. Fatal are those for which the
// catalogue wants the GPU reset or the machine restarted: nothing that it computes from then
// on can be trusted. The others concern one process, which its own calls tell, or nobody.
//
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
var xids = map[uint64]struct {
	text  string
	fatal bool
}{
	13:  {"exception in a kernel, such as an out-of-bounds access: only its process fails", false},
	31:  {"page fault in device memory: only its process fails", false},
	43:  {"a process was stopped after an error of its own: the GPU keeps working", false},
	45:  {"a process's work was removed, because the process ended or because of another error", false},
	46:  {"the GPU stopped processing: reset it", true},
	48:  {"a memory error that ECC could not correct: reset the GPU", true},
	62:  {"the GPU's microcontroller halted: reset the GPU", true},
	63:  {"a row of memory will be remapped at the next reset of the GPU", false},
	64:  {"a row of memory could not be remapped: reset the GPU, and replace it if this happens again", true},
	74:  {"NVLink error: check the link (the engine does not use it)", false},
	79:  {"the GPU fell off the bus: restart the machine", true},
	94:  {"a memory error that ECC could not correct, contained to one process, which fails: reset the GPU when convenient", false},
	95:  {"a memory error that ECC could not correct, not contained to one process: reset the GPU", true},
	119: {"the GPU's firmware does not answer: reset the GPU, or power-cycle the machine", true},
	120: {"the GPU's firmware failed: reset the GPU, or power-cycle the machine", true},
	140: {"memory errors that could not be corrected: reset the GPU", true},
}

// xidMeaning says what an Xid means, for people, and whether the engine gives the device up
// by it. Xids are of the device, whichever process they come from.
func xidMeaning(xid uint64) (text string, fatal bool) {
	if known, ok := xids[xid]; ok {
		return known.text, known.fatal
	}
	return "see NVIDIA's catalogue of Xids", false
}
