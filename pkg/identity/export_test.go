package identity

import "time"

// Forget has the source look at its files with the next connection.
func Forget(s *Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = time.Time{}
}
