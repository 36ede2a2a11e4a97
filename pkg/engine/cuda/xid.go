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
	13:  {"exception in a kernel, such as an access out of bounds: the process that it is of fails by itself", false},
	31:  {"page fault of device memory: the process that it is of fails by itself", false},
	43:  {"a process was stopped after an error of its own: the GPU works on", false},
	45:  {"work of a process was taken away, because it ended or because of another error", false},
	46:  {"the GPU stopped processing: reset it", true},
	48:  {"an error of memory that ECC could not correct: reset the GPU", true},
	62:  {"the GPU's microcontroller halted: reset the GPU", true},
	63:  {"a row of memory will be remapped: the next reset of the GPU does it", false},
	64:  {"a row of memory could not be remapped: reset the GPU, and replace it if that comes again", true},
	74:  {"error of NVLink, which the engine does not use: look at the link", false},
	79:  {"the GPU fell off the bus: restart the machine", true},
	94:  {"an error of memory that ECC could not correct, contained to one process, which fails by itself: reset the GPU when that suits", false},
	95:  {"an error of memory that ECC could not correct and that was not contained: reset the GPU", true},
	119: {"the GPU's firmware does not answer: reset the GPU, or switch the machine off and on", true},
	120: {"the GPU's firmware failed: reset the GPU, or switch the machine off and on", true},
	140: {"errors of memory that could not be corrected: reset the GPU", true},
}

// xidMeaning says what an Xid means, for people, and whether the engine gives the device up
// by it. Xids are of the device, whichever process they come from.
func xidMeaning(xid uint64) (text string, fatal bool) {
	if known, ok := xids[xid]; ok {
		return known.text, known.fatal
	}
	return "see NVIDIA's catalogue of Xids", false
}
