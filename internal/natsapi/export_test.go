package natsapi

// SlowReports gives each handler burst messages, and then none.
func (n *Node) SlowReports(burst int) {
	n.api.reports.mu.Lock()
	defer n.api.reports.mu.Unlock()
	n.api.reports.one = limit{1e-9, burst}
	clear(n.api.reports.by)
}
