package control

// TakeTurn has drains wait for their turn.
func (c *Server) TakeTurn() { c.drains <- struct{}{} }
