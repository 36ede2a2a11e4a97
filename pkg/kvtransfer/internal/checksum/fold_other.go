//go:build !amd64

package checksum

func paths() []path { return []path{standard} }

func (path) fold(*byte, int, uint32) uint32              { return 0 }
func (path) foldCopy(*byte, *byte, int, uint32) uint32   { return 0 }
func (path) foldStream(*byte, *byte, int, uint32) uint32 { return 0 }
