package drive

// MemoryAvailable is memoryAvailable.
var MemoryAvailable = memoryAvailable
