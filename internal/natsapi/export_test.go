package natsapi

import "golang.org/x/time/rate"

// SlowReports gives each handler burst messages, and then none.
func (n *Node) SlowReports(burst int) {
	n.api.reports.mu.Lock()
	defer n.api.reports.mu.Unlock()
	n.api.reports.rate, n.api.reports.burst = rate.Limit(1e-9), burst
	clear(n.api.reports.by)
}
