package joining

// ID is what the policy calls an attempt.
func (j *Join) ID(hedge bool) string {
	if hedge {
		return j.p.ID + hedgeSuffix
	}
	return j.p.ID
}
