//go:build !amd64

package checksum

const (
	foldUnit  = 64
	foldLeast = 256
	canFold   = false
)

func fold(*byte, int, uint32) uint32              { return 0 }
func foldCopy(*byte, *byte, int, uint32) uint32   { return 0 }
func foldStream(*byte, *byte, int, uint32) uint32 { return 0 }
