package membership

// Defaults that tests wait for.
const (
	RequestTimeout = defaultRequestTimeout
	RetryWait      = defaultRetryWait
)

// What tests look at from outside.
var (
	// ReadRecord is what a watch makes of a key.
	ReadRecord = readRecord
	// ReadKey is what it makes of an API key's.
	ReadKey = readKey
	// ReadPolicy is what it makes of the policy's.
	ReadPolicy = readValue
	// EncodeView and DecodeView are what a view file holds.
	EncodeView, DecodeView = encodeView, decodeView
	// ReadViewFile and WriteViewFile are for files with a view.
	ReadViewFile, WriteViewFile = readViewFile, writeViewFile
)
