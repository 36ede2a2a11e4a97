package cuda

// xidMeaning says what an Xid of NVIDIA's catalogue means, for people, and whether the
// engine gives the device up by it. Xids are of the device, whichever process they come
// from. Fatal are those for which the catalogue wants the GPU reset or the machine
// restarted: nothing that it computes from then on can be trusted. The others concern one
// process, which its own calls tell, or nobody.
//
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
func xidMeaning(xid uint64) (text string, fatal bool) {
	switch xid {
	case 13:
		return "exception in a kernel, such as an access out of bounds: the process that it is of fails by itself", false
	case 31:
		return "page fault of device memory: the process that it is of fails by itself", false
	case 43:
		return "a process was stopped after an error of its own: the GPU works on", false
	case 45:
		return "work of a process was taken away, because it ended or because of another error", false
	case 46:
		return "the GPU stopped processing: reset it", true
	case 48:
		return "an error of memory that ECC could not correct: reset the GPU", true
	case 62:
		return "the GPU's microcontroller halted: reset the GPU", true
	case 63:
		return "a row of memory will be remapped: the next reset of the GPU does it", false
	case 64:
		return "a row of memory could not be remapped: reset the GPU, and replace it if that comes again", true
	case 74:
		return "error of NVLink, which the engine does not use: look at the link", false
	case 79:
		return "the GPU fell off the bus: restart the machine", true
	case 94:
		return "an error of memory that ECC could not correct, contained to one process, which fails by itself: reset the GPU when that suits", false
	case 95:
		return "an error of memory that ECC could not correct and that was not contained: reset the GPU", true
	case 119:
		return "the GPU's firmware does not answer: reset the GPU, or switch the machine off and on", true
	case 120:
		return "the GPU's firmware failed: reset the GPU, or switch the machine off and on", true
	case 140:
		return "errors of memory that could not be corrected: reset the GPU", true
	}
	return "see NVIDIA's catalogue of Xids", false
}
